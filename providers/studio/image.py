"""Pictures by the studio: drawn here, from nothing but the prompt and the seed."""

import asyncio
import time
from collections import OrderedDict

from providers.image import Accepted, Capacity, ImageRequest, Refused, Uncertain
from providers.studio.directives import Directives, directives_of
from providers.studio.painting import paint

RETRY_AFTER_SECONDS = 0.2
MAX_REMEMBERED = 10_000
# A request is called by when it was accepted.
_REQUEST = "studio-"


class StudioImages:
    """Draws pictures. Directives in a prompt show what else a model may do."""

    def __init__(self) -> None:
        # How often each request was refused for want of capacity.
        self._refusals: OrderedDict[str, int] = OrderedDict()

    async def generate(self, request: ImageRequest, accepted: Accepted) -> bytes:
        """The picture as PNG: the same bytes for the same prompt, seed, size and kind.

        Drawn in a thread. Raises `Refused`, `Capacity` or `Uncertain` if the prompt directs so.
        """
        directives = directives_of(request.prompt)
        refused = self._refusals.get(request.request_id, 0)
        if refused < directives.refusals:
            self._remember(request.request_id, refused + 1)
            raise Capacity("as directed", retry_after_seconds=RETRY_AFTER_SECONDS)
        if directives.fails:
            raise Refused("as directed")
        if directives.is_cut:
            raise Uncertain("cut off, as directed")
        now = time.time()
        await accepted(f"{_REQUEST}{now:.3f}")
        return await self._drawn(request, directives, since=now)

    async def resume(self, request: ImageRequest, request_id: str) -> bytes:
        """The same picture, as long after the request was accepted as it would have taken."""
        return await self._drawn(request, directives_of(request.prompt), since=_since(request_id))

    async def cancel(self, request_id: str) -> bool:
        """Always done: nothing is drawn that nobody waits for."""
        _since(request_id)
        return True

    async def _drawn(self, request: ImageRequest, directives: Directives, *, since: float) -> bytes:
        if directives.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(since + directives.slow_seconds - time.time())
        return await asyncio.to_thread(paint, request, directives.prompt)

    def _remember(self, request_id: str, refusals: int) -> None:
        self._refusals[request_id] = refusals
        if len(self._refusals) > MAX_REMEMBERED:
            self._refusals.popitem(last=False)


def _since(request_id: str) -> float:
    """When a request of ours was accepted."""
    try:
        return float(request_id.removeprefix(_REQUEST))
    except ValueError:
        raise Uncertain(f"{request_id} is no request of the studio") from None
