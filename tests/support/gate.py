"""A model that keeps people waiting until it is let."""

import asyncio
import io

from PIL import Image

from providers.image import Accepted, ImageRequest


class Gate:
    """A provider that says when it was asked, and answers when it is let."""

    def __init__(self, *, is_stubborn: bool = False, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.requests: list[ImageRequest] = []
        self.resumed: list[str] = []
        self.withdrawn: list[str] = []
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._is_stubborn = is_stubborn

    async def was_asked(self) -> None:
        """Waits until somebody asks for a picture."""
        async with asyncio.timeout(10):
            await self.asked.wait()

    async def generate(self, request: ImageRequest, accepted: Accepted) -> bytes:
        """A grey picture."""
        if self.request_id is not None:
            await accepted(self.request_id)
        return await self._made(request)

    async def resume(self, request: ImageRequest, request_id: str) -> bytes:
        """The same picture."""
        self.resumed.append(request_id)
        return await self._made(request)

    async def cancel(self, request_id: str) -> bool:
        """Takes note of it."""
        self.withdrawn.append(request_id)
        return True

    async def _made(self, request: ImageRequest) -> bytes:
        self.requests.append(request)
        self.asked.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            if not self._is_stubborn:
                raise
            await self.let.wait()
        encoded = io.BytesIO()
        Image.new("L", (request.width, request.height), 99).save(encoded, "PNG")
        return encoded.getvalue()
