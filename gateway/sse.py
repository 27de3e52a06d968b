"""Server-sent events: how they are written, and how a stream answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

Item = TypeVar("Item")

CONNECTED = b": connected\n\n"
HEARTBEAT = b": heartbeat\n\n"
# Where a stream ends because the server goes away, the browser comes back after this.
MOVED = b"retry: 1000\n\n"

_HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def event(name: str, data: bytes, event_id: int | str | None = None) -> bytes:
    """One event; `data` is JSON on one line."""
    line = b"" if event_id is None else f"id: {event_id}\n".encode()
    return b"%bevent: %b\ndata: %b\n\n" % (line, name.encode(), data)


def place(event_id: str) -> bytes:
    """Where the stream is now, for a reader that comes back; no event."""
    return f"id: {event_id}\n\n".encode()


class _Stream(StreamingResponse):
    """A stream of events; HEAD is answered with its head, since the stream may never end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body"})
        else:
            await super().__call__(scope, receive, send)


def response(events: AsyncIterator[bytes]) -> StreamingResponse:
    """The answer that streams events, which nobody on the way may keep or compress."""
    return _Stream(events, headers=_HEADERS, media_type="text/event-stream")


async def until(over: asyncio.Event, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """The items as they come, until there are no more or `over` is set."""
    end = asyncio.ensure_future(over.wait())
    try:
        while True:
            step = asyncio.ensure_future(anext(items))
            try:
                await asyncio.wait((end, step), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    return
            finally:
                step.cancel()
            try:
                yield step.result()
            except StopAsyncIteration:
                return
    finally:
        end.cancel()
