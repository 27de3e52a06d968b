"""WebSockets as uvicorn speaks them, with a shorter way for what is said often."""

import asyncio
from typing import Protocol, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

# Under which the state of an ASGI scope has the socket that it is about.
SOCKET = "socket"

_FIN_TEXT = 0x81
_INVALID_UTF8 = 1007


def text_message(text: bytes) -> bytes:
    """A text as a server sends it, whole in one frame (RFC 6455, 5.2)."""
    size = len(text)
    if size < 126:
        head = bytes((_FIN_TEXT, size))
    elif size < 2**16:
        head = bytes((_FIN_TEXT, 126)) + size.to_bytes(2)
    else:
        head = bytes((_FIN_TEXT, 127)) + size.to_bytes(8)
    return head + text


class End(Protocol):
    """Who hears what the other end of a socket does."""

    def hear(self, text: str) -> None:
        """It says something; a message that is no text is empty."""

    def leave(self) -> None:
        """It is gone."""

    def pause(self) -> None:
        """It does not take all that was sent."""

    def resume(self) -> None:
        """It has taken all."""


class _Nobody:
    """Takes events of which the application was told already."""

    def put_nowait(self, _event: ASGIReceiveEvent) -> None:
        """Does nothing."""


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket that can be read and written without an ASGI event, a queue and a task's turn.

    The handshake, pings, the close and whoever is slow go the ordinary way.
    """

    _end: End | None = None
    _late: asyncio.TimerHandle | None = None

    def attach(self, end: End) -> None:
        """Tells what the other end does from now on, and what has come already."""
        self._end = end
        while not self.queue.empty():
            event = self.queue.get_nowait()
            if event["type"] == "websocket.receive":
                end.hear(event.get("text") or "")
            else:
                end.leave()
        if not self.writable.is_set():
            end.pause()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        # Nobody needs them any more, and they are a third of what a quiet window holds.
        self.queue = cast("asyncio.Queue[ASGIReceiveEvent]", _Nobody())
        self.request.headers.clear()
        del self.request, self.response

    def send_now(self, message: bytes) -> None:
        """Sends a message from `text_message`, whatever waits; nothing after a close."""
        if not (self.close_sent or self.transport.is_closing()):
            self.transport.write(message)

    def send_at_once(self, text: bytes) -> bool:
        """Sends a text if the other end takes it now; whether it did."""
        if self.close_sent or not self.writable.is_set() or self.transport.is_closing():
            return False
        self.transport.write(text_message(text))
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The beginning."""
        super().connection_made(transport)
        # It is writable while nothing waits here.
        self.transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        """Something waits here."""
        super().pause_writing()
        if self._end is not None:
            self._end.pause()

    def resume_writing(self) -> None:
        """Nothing waits here any more."""
        super().resume_writing()
        if self._end is not None:
            self._end.resume()

    async def send(self, message: ASGISendEvent) -> None:
        """Sends once the other end takes it; a close only as long as a ping is waited for."""
        if message["type"] == "websocket.close":
            self._abort_soon()
        await super().send(message)

    def keepalive_timeout(self) -> None:
        """Nobody has answered: what waits to be sent is not waited for."""
        super().keepalive_timeout()
        self.transport.abort()

    def handle_parser_exception(self) -> None:
        """The other end has broken the protocol: it is gone, whether it reads why or not."""
        super().handle_parser_exception()
        self._abort_soon()
        if self._end is not None:
            self._end.leave()

    def handle_close(self, event: Frame) -> None:
        """The other end leaves, whether or not it reads what waits to be sent."""
        super().handle_close(event)
        self._abort_soon()
        if self._end is not None:
            self._end.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)
        if self._end is not None:
            self._end.leave()

    def handle_connect(self, event: Request) -> None:
        """The handshake: the application is told of this socket."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            # The application has been started, but not had its turn yet.
            self.scope["state"][SOCKET] = self

    def send_receive_event_to_app(self) -> None:
        """A message has come whole."""
        if self._end is None or self.close_sent:
            super().send_receive_event_to_app()
            return
        data = b"".join(self.frames)
        self.frames = []
        if self.curr_msg_data_type == "bytes":
            self._end.hear("")
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.conn.send_close(_INVALID_UTF8)
            self.handle_parser_exception()
            return
        self._end.hear(text)

    def _abort_soon(self) -> None:
        if self._late is None and self.ping_timeout is not None:
            self._late = self.loop.call_later(self.ping_timeout, self.transport.abort)
