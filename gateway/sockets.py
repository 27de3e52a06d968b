"""WebSockets as uvicorn speaks them, with a shorter way for what is said often."""

from collections.abc import Callable

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

# Under which the state of an ASGI scope has the socket that it is about.
SOCKET = "socket"

_FIN_TEXT = 0x81
_INVALID_UTF8 = 1007


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket that can be read and written without an ASGI event, a queue and a task's turn.

    The handshake, pings, the close and whoever is slow go the ordinary way.
    """

    _hear: Callable[[str], None] | None = None

    def attach(self, hear: Callable[[str], None]) -> None:
        """Has `hear` called with every message from now on; one that is no text is empty."""
        self._hear = hear

    def send_at_once(self, text: bytes) -> bool:
        """Sends a text message if the other end takes it now; whether it did."""
        if self.close_sent or not self.writable.is_set() or self.transport.is_closing():
            return False
        size = len(text)
        if size < 126:
            head = bytes((_FIN_TEXT, size))
        elif size < 2**16:
            head = bytes((_FIN_TEXT, 126)) + size.to_bytes(2)
        else:
            head = bytes((_FIN_TEXT, 127)) + size.to_bytes(8)
        self.transport.write(head + text)
        return True

    def handle_connect(self, event: Request) -> None:
        """The handshake: the application is told of this socket."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            # The application has been started, but not had its turn yet.
            self.scope["state"][SOCKET] = self

    def send_receive_event_to_app(self) -> None:
        """A message has come whole."""
        if self._hear is None or self.close_sent:
            super().send_receive_event_to_app()
            return
        data = b"".join(self.frames)
        self.frames = []
        if self.curr_msg_data_type == "bytes":
            self._hear("")
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.conn.send_close(_INVALID_UTF8)
            self.handle_parser_exception()
            return
        self._hear(text)
