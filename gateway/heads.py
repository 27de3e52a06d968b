"""HTTP/1.1 as uvicorn speaks it, with request heads that are bounded in size and time."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 20.0

_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\n"
    b"Content-Length: 0\r\n"
    b"\r\n"
)


class BoundedHeads(HttpToolsProtocol):
    """Ends connections whose request line, headers and trailers are longer than 64 KiB together.

    The parser keeps what it has not told yet, without a limit of its own: that is counted too.
    Also ends those on which no head comes whole within 20 seconds, though one is due: uvicorn
    itself waits for ever, but for what follows an answer at once.
    """

    _head_bytes = 0
    _untold_bytes = 0
    _in_head = False
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first head."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads on, and looks how much is kept, and what for."""
        self._untold_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._expect_nothing()
        elif self._head_bytes + self._untold_bytes > MAX_HEAD_BYTES:
            self.transport.write(_REFUSAL)
            self.transport.close()
        elif self._in_head or not self._is_answering():
            self._expect_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head_bytes = 0
        self._untold_bytes = 0
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._head_bytes += len(url)
        self._untold_bytes = 0
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        self._head_bytes += len(name) + len(value)
        self._untold_bytes = 0
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The end of the headers."""
        self._in_head = False
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._untold_bytes = 0
        super().on_body(body)

    def _expect_head(self) -> None:
        # Not anew with each byte: who sends one at a time is late all the same.
        if self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete
