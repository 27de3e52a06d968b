"""HTTP/1.1 as uvicorn speaks it, with request heads of bounded size."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024

_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\n"
    b"Content-Length: 0\r\n"
    b"\r\n"
)


class BoundedHeads(HttpToolsProtocol):
    """Ends connections whose request line, headers and trailers are longer than 64 KiB together.

    The parser keeps what it has not told yet, without a limit of its own: that is counted too.
    """

    _head_bytes = 0
    _untold_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Reads on, and looks how much is kept."""
        self._untold_bytes += len(data)
        super().data_received(data)
        is_too_long = self._head_bytes + self._untold_bytes > MAX_HEAD_BYTES
        if is_too_long and not self.transport.is_closing():
            self.transport.write(_REFUSAL)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head_bytes = 0
        self._untold_bytes = 0
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

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._untold_bytes = 0
        super().on_body(body)
