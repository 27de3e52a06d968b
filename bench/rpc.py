"""A lean gRPC caller, so that the client is not what is measured."""

import asyncio
import struct
from collections.abc import Iterable
from typing import Self, TypeVar, cast

from google.protobuf.message import Message

Answer = TypeVar("Answer", bound=Message)

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_MOST = 2**31 - 1
_FIRST_WINDOW = 65_535
_MAX_BODY = 16_384


class Caller(asyncio.Protocol):
    """One HTTP/2 connection that carries one unary call at a time, of one method and metadata."""

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        # The same for every call, and never indexed: no state is kept between calls.
        self._headers = b"".join(_literal(name) + _text(value) for name, value in headers)
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._body = b""
        self._stream = -1
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def at(cls, address: str, method: str, metadata: Iterable[tuple[str, str]]) -> Self:
        """Connects to a service, for calls of `/package.Service/Method`."""
        host, _, port = address.rpartition(":")
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", address),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "10S"),
            *metadata,
        )
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(lambda: cls(headers), host, int(port))
        return caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Says that we take as much as comes."""
        # uvloop's are no subclass.
        self._transport = cast("asyncio.Transport", transport)
        window = struct.pack(">HI", 4, _MOST)
        more = struct.pack(">I", _MOST - _FIRST_WINDOW)
        self._transport.write(
            _PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW_UPDATE, 0, 0, more)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the call that waits."""
        self._fail(exc or ConnectionError("the service closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Reads whole frames."""
        self._unread += data
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3])
            if len(self._unread) < 9 + size:
                return
            kind, flags = self._unread[3], self._unread[4]
            payload, self._unread = self._unread[9 : 9 + size], self._unread[9 + size :]
            self._take(kind, flags, payload)

    async def call(self, request: Message, answer: type[Answer]) -> Answer:
        """The answer of the service. Raises `ConnectionError` if there is none."""
        assert self._transport is not None
        if self.is_closed:
            raise ConnectionError("the service closed the connection")
        message = request.SerializeToString()
        body = struct.pack(">BI", 0, len(message)) + message
        assert len(body) <= _MAX_BODY, "longer requests need several frames, and flow control"
        self._stream += 2
        self._body = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            _frame(_HEADERS, _END_HEADERS, self._stream, self._headers)
            + _frame(_DATA, _END_STREAM, self._stream, body)
        )
        return answer.FromString((await self._answer)[5:])

    @property
    def is_closed(self) -> bool:
        """Whether there is a connection no more."""
        assert self._transport is not None
        return self._transport.is_closing()

    def close(self) -> None:
        """Ends the connection."""
        assert self._transport is not None
        self._transport.close()

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == _DATA:
            self._body += payload
        elif kind == _HEADERS and flags & _END_STREAM:
            self._end()
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind in {_RESET, _GOAWAY}:
            self._fail(ConnectionError(f"the service ended the call: {payload!r}"))

    def _end(self) -> None:
        if self._answer is None or self._answer.done():
            return
        if self._body:
            self._answer.set_result(self._body)
        else:  # a status that is no OK comes without a message
            self._fail(ConnectionError("the service refused the call"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _literal(name: str) -> bytes:
    return b"\0" + _text(name)


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()
