"""WebSockets as uvicorn speaks them, with a shorter way for what is said often."""

import asyncio
from typing import Any, Protocol, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol

# Under which the state of an ASGI scope has the socket that it is about.
SOCKET = "socket"

# What is larger or malformed is so whoever notices: the protocol or its application.
CLOSE_MALFORMED = 4400
_MALFORMED = (CloseCode.MESSAGE_TOO_BIG, CloseCode.INVALID_DATA)

_FIN_TEXT = 0x81


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

    def hear(self, text: bytes) -> None:
        """It says something, in UTF-8 or not; a message that is no text is empty."""

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


class _Conversation(ServerProtocol):
    """What is said over a WebSocket."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """The other end is told why it has failed."""
        super().fail(CLOSE_MALFORMED if code in _MALFORMED else code, reason)


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket that can be read and written without an ASGI event, a queue and a task's turn.

    The handshake, pings, the close and whoever is slow go the ordinary way.
    """

    _end: End | None = None
    _late: asyncio.TimerHandle | None = None
    _pong = b""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _Conversation(max_size=config.ws_max_size, logger=self.conn.logger)

    def attach(self, end: End) -> None:
        """Tells what the other end does from now on, and what has come already."""
        self._end = end
        while not self.queue.empty():
            event = self.queue.get_nowait()
            if event["type"] == "websocket.receive":
                end.hear(event.get("bytes") or b"")
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
        if self._pong:
            pong, self._pong = self._pong, b""
            self.send_now(pong)

    async def send(self, message: ASGISendEvent) -> None:
        """Sends once the other end takes it; a close only as long as a ping is waited for."""
        if message["type"] == "websocket.close":
            self._abort_soon()
        await super().send(message)

    def keepalive_timeout(self) -> None:
        """Nobody has answered: what waits to be sent is not waited for."""
        super().keepalive_timeout()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Something has come."""
        # Of who has broken the protocol nothing is read any more; but it is taken, since a line
        # that is closed over it would lose the close.
        if self.conn.parser_exc is None:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        """The other end has broken the protocol: it is gone, whether it reads why or not."""
        if self._end is not None:
            self._end.leave()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006, "reason": ""})
        if self.close_sent or self.transport.is_closing():
            return
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        # With a timer the line is not closed as soon as the application is done.
        self.close_timer = self.loop.call_later(
            self.ping_timeout or self.close_timeout, self.transport.abort
        )

    def handle_ping(self) -> None:
        """The other end asks whether this one is there."""
        answers = self.conn.data_to_send()
        if self.writable.is_set() or self.conn.close_rcvd is not None:
            self.transport.write(b"".join(answers))
        elif answers:
            # The latest ping is answered for all before it (RFC 6455, 5.5.3).
            self._pong = answers[-1]

    def handle_cont(self, event: Frame) -> None:
        """A further part of a message."""
        # Empty ones could add up without end.
        if event.data or event.fin:
            super().handle_cont(event)

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
        text = b"".join(self.frames) if self.curr_msg_data_type == "text" else b""
        if self._end is not None and not self.close_sent:
            self.frames = []
            self._end.hear(text)
        else:
            self.frames, self.curr_msg_data_type = [text], "bytes"
            super().send_receive_event_to_app()

    def _abort_soon(self) -> None:
        if self._late is None and self.ping_timeout is not None:
            self._late = self.loop.call_later(self.ping_timeout, self.transport.abort)
