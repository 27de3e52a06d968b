"""A lean WebSocket client, so that the client is not what is measured."""

import asyncio
import base64
import re
import secrets
import struct
import time
from collections.abc import Sequence
from typing import Protocol, cast

TEXT = 0x81
BINARY = 0x82
PING = 0x89
_PONG = 0x8A
_CLOSE = 0x88
# Whatever the protocol, a cursor that is told has an x, which is when it was sent, and a y, which
# is whose it is.
_PLACE = b'"x":'
_SENT = re.compile(rb'"x":([0-9.]+)')


class Dialect(Protocol):
    """What windows say to one kind of server, and where they say it."""

    path: str
    kind: int
    # What frames without news begin with, though they have places in them.
    hello: bytes

    def greeting(self, room: str, number: int) -> Sequence[bytes]:
        """What a window says first; the server's first frame is the answer to it."""
        ...

    def move(self, room: str, number: int, x: float, count: int) -> bytes:
        """The frame that tells for the `count`th time where a window's cursor is."""
        ...


class Window(asyncio.Protocol):
    """Counts the places of others that it is told, and, if it looks, how late."""

    def __init__(self, dialect: Dialect, url: str, room: str, number: int, headers: str) -> None:
        self._dialect = dialect
        self._room = room
        self._number = number
        self._own = b'"y":%d}' % number
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._request = (
            f"GET {dialect.path.format(room=room)} HTTP/1.1\r\nHost: {url}\r\n{headers}"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n"
        )
        self._unread = b""
        self._moves = 0
        self._transport = cast(asyncio.Transport, None)
        self._upgraded = False
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.looks = False
        self.told = 0
        self.lateness: list[float] = []
        # When a frame came that has no place in it, as heartbeats do.
        self.beats: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        """A server that goes away before the window was in has failed."""
        if not self.joined.done():
            self.joined.set_exception(exc or ConnectionError("the server ended the connection"))

    def data_received(self, data: bytes) -> None:
        """Reads whole frames."""
        unread = self._unread + data if self._unread else data
        if not self._upgraded:
            head, found, rest = unread.partition(b"\r\n\r\n")
            if not found:
                self._unread = unread
                return
            if b" 101 " not in head:
                self.joined.set_exception(ConnectionError(head.decode()))
                return
            self._upgraded = True
            for each in self._dialect.greeting(self._room, self._number):
                self._send(self._dialect.kind, each)
            unread = rest
        at, size = 0, len(unread)
        while size - at >= 2:
            length, start = unread[at + 1], at + 2
            if length == 126:
                length, start = int.from_bytes(unread[at + 2 : at + 4]), at + 4
            elif length == 127:
                length, start = int.from_bytes(unread[at + 2 : at + 10]), at + 10
            if size < start + length:
                break
            self._read(unread, unread[at], start, start + length)
            at = start + length
        self._unread = unread[at:]

    def move(self) -> None:
        """Tells where the cursor is: at the time of sending, in milliseconds."""
        self._moves += 1
        text = self._dialect.move(self._room, self._number, _now(), self._moves)
        self._send(self._dialect.kind, text)

    def count_anew(self, *, looks: bool = False) -> None:
        """Forgets what it was told."""
        self.told, self.looks = 0, looks
        self.lateness.clear()
        self.beats.clear()

    def close(self) -> None:
        """Goes, without a word."""
        self._transport.abort()

    def _read(self, data: bytes, kind: int, start: int, end: int) -> None:
        if kind in (TEXT, BINARY):
            if not self.joined.done():
                self.joined.set_result(None)
            if data.startswith(self._dialect.hello, start):
                return
            told = data.count(_PLACE, start, end)
            if not told:
                self.beats.append(time.monotonic())
                return
            # Some servers tell a window what it has told them.
            own = data.count(self._own, start, end)
            self.told += told - own
            if self.looks and not own:
                now = _now()
                self.lateness += [
                    (now - float(sent)) % 1e6 for sent in _SENT.findall(data, start, end)
                ]
        elif kind == PING:
            self._send(_PONG, data[start:end])
        elif kind == _CLOSE and not self.joined.done():
            self.joined.set_exception(ConnectionError(data[start + 2 : end].decode()))

    def _send(self, kind: int, text: bytes) -> None:
        # A mask of nothing, which leaves the text as it is.
        size = bytes([0x80 | len(text)]) if len(text) < 126 else struct.pack(">BH", 0xFE, len(text))
        self._transport.write(bytes([kind]) + size + b"\0\0\0\0" + text)


async def opened(
    dialect: Dialect, address: tuple[str, int], room: str, number: int, headers: str = ""
) -> Window:
    """A window that a server has taken in."""
    loop = asyncio.get_running_loop()
    host, port = address
    _, window = await loop.create_connection(
        lambda: Window(dialect, f"{host}:{port}", room, number, headers), host, port
    )
    await window.joined
    return window


def _now() -> float:
    return round(time.monotonic() * 1000 % 1e6, 2)
