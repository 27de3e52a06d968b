"""WebSockets as uvicorn speaks them, with a shorter way for what is said often."""

import asyncio
from collections.abc import Callable

from uvicorn._types import ASGISendEvent
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
    _gone: asyncio.TimerHandle | None = None

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

    async def send(self, message: ASGISendEvent) -> None:
        """Sends once the other end takes it; a close only as long as a ping is waited for."""
        if message["type"] == "websocket.close" and self.ping_timeout is not None:
            self._gone = self.loop.call_later(self.ping_timeout, self.transport.abort)
        await super().send(message)

    def keepalive_timeout(self) -> None:
        """Nobody has answered: what waits to be sent is not waited for."""
        super().keepalive_timeout()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        if self._gone is not None:
            self._gone.cancel()
        super().connection_lost(exc)

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
