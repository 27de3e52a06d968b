"""Pictures by the studio: drawn here, from nothing but the prompt and the seed."""

import asyncio
from collections import OrderedDict

from providers.image import Capacity, ImageRequest, Refused
from providers.studio.directives import directives_of
from providers.studio.painting import paint

RETRY_AFTER_SECONDS = 0.2
MAX_REMEMBERED = 10_000


class StudioImages:
    """Draws pictures. Directives in a prompt show what else a model may do."""

    def __init__(self) -> None:
        # How often each request was refused for want of capacity.
        self._refusals: OrderedDict[str, int] = OrderedDict()

    async def generate(self, request: ImageRequest) -> bytes:
        """The picture as PNG: the same bytes for the same prompt, seed, size and kind.

        Drawn in a thread. Raises `Refused` or `Capacity` if the prompt directs so.
        """
        directives = directives_of(request.prompt)
        refused = self._refusals.get(request.request_id, 0)
        if refused < directives.refusals:
            self._remember(request.request_id, refused + 1)
            raise Capacity("as directed", retry_after_seconds=RETRY_AFTER_SECONDS)
        if directives.fails:
            raise Refused("as directed")
        if directives.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(directives.slow_seconds)
        return await asyncio.to_thread(paint, request, directives.prompt)

    def _remember(self, request_id: str, refusals: int) -> None:
        self._refusals[request_id] = refusals
        if len(self._refusals) > MAX_REMEMBERED:
            self._refusals.popitem(last=False)
