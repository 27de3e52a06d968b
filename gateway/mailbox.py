"""What waits for one window's socket to take it, but for peers: little, however slow it is."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

MAX_FRAMES = 256
MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class Closed:
    """The end of a socket: the WebSocket close code, and why, for people."""

    code: int
    reason: str


class Mailbox:
    """Frames in order, for one reader, from when it has been told everything.

    Holds 256 frames or 64 KiB, or one frame that is larger. When that is too little, all of them
    are dropped and so is what follows; the reader, once it is back, has `fall_behind` called to
    ask that it be told everything anew.

    While the reader waits for a frame, `pass_on` may take one in its place; whether it did.
    """

    def __init__(self, fall_behind: Callable[[], None], pass_on: Callable[[bytes], bool]) -> None:
        self._fall_behind = fall_behind
        self._pass_on = pass_on
        # Most of the many are empty: a list and a future that comes and goes hold little.
        self._frames: list[bytes] = []
        self._awaited: asyncio.Future[None] | None = None
        self._size_bytes = 0
        self._complete = False
        self._dropped = False
        self._closed: Closed | None = None

    def begin(self) -> None:
        """Takes frames from now on; everything has been told, and what waits is not needed."""
        self._clear()
        self._complete = True
        self._dropped = False

    def put(self, frame: bytes) -> None:
        """Adds a frame that tells what changed."""
        if not self._complete or (self._is_ready() and self._pass_on(frame)):
            return
        full = len(self._frames) >= MAX_FRAMES or self._size_bytes + len(frame) > MAX_BYTES
        if self._frames and full:
            self._clear()
            self._complete = False
            self._dropped = True
        else:
            self._append(frame)

    def close(self, closed: Closed) -> None:
        """Ends it once the frames are taken. The first end counts."""
        self._closed = self._closed or closed
        self._complete = False
        self._wake()

    async def take(self) -> bytes | Closed:
        """The next frame when there is one, or the end."""
        while not self._frames:
            if self._closed is not None:
                return self._closed
            if self._dropped:
                self._dropped = False
                self._fall_behind()
            self._awaited = asyncio.get_running_loop().create_future()
            try:
                await self._awaited
            finally:
                self._awaited = None
        frame = self._frames.pop(0)
        self._size_bytes -= len(frame)
        return frame

    def _append(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size_bytes += len(frame)
        self._wake()

    def _is_ready(self) -> bool:
        """Whether the reader waits, and nothing else does."""
        return self._awaited is not None and not self._awaited.done()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _clear(self) -> None:
        self._frames.clear()
        self._size_bytes = 0
