"""The realtime channel: one WebSocket a window."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketClose, WebSocketDisconnect

from gateway.auth import Asker, Doorkeeper
from gateway.frames import MalformedFrame, presence_from_text
from gateway.mailbox import Closed
from gateway.presence import PresenceLink, Session
from gateway.routes.generations import language_of
from gateway.routes.states import Mark, States
from gateway.sockets import SOCKET, Socket
from gateway.watching import Watchings
from servicekit.client import Client
from servicekit.errors import Failure, Invalid, NotFound
from servicekit.identity import Behalf
from servicekit.telemetry import logger

PATH = "/api/canvas-projects/{canvas_id}/realtime"
_PATH = compile_path(PATH)[0]
SUBPROTOCOL = "gesso.v1"
# Windows that are sent away come back to the other gateways one after another.
SPREAD_SECONDS = 3.0
# Of windows that all come at once, and of those that are looked at again: they hold up nothing.
ADMISSIONS_AT_ONCE = 16
RECHECKS_AT_ONCE = 4
# A control frame has 125 bytes, two of which are the code (RFC 6455, 5.5).
MAX_REASON_BYTES = 123

SIGNED_OUT = Closed(4401, "Nobody is signed in, or not any more.")
FOREIGN_PAGE = Closed(4403, "A page of this origin may not connect.")
NO_CANVAS = Closed(4404, "There is no such canvas.")
GOING_AWAY = Closed(1001, "The server goes away; connect again.")
NOT_NOW = Closed(1013, "The server cannot tell now; connect again.")
# Told to nobody: there is no socket any more.
LEFT = Closed(1005, "The window left.")

_log = logger("gateway.realtime")


@dataclass(eq=False)
class _Window:
    """A window that was let in, and when it is looked again whether it may be there."""

    websocket: WebSocket
    canvas_id: str
    incarnation: int
    session: Session
    recheck_at: float


class RealtimeRoute:
    """Windows of who is signed in, on canvases of theirs."""

    def __init__(
        self,
        doorkeeper: Doorkeeper,
        canvas: Client,
        link: PresenceLink,
        watchings: Watchings,
        draining: asyncio.Event,
        *,
        recheck_seconds: float,
    ) -> None:
        self._doorkeeper = doorkeeper
        self._canvas = canvas
        self._stub = CanvasServiceStub(canvas.channel)
        self._link = link
        self._watchings = watchings
        self._draining = draining
        self._recheck_seconds = recheck_seconds
        # Those that are to be looked at first come first.
        self._windows: dict[_Window, None] = {}
        self._admitting = asyncio.Semaphore(ADMISSIONS_AT_ONCE)
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a window; the handshake of one that is nowhere is refused."""
        found = _PATH.match(scope["path"])
        if found is None:
            await WebSocketClose()(scope, receive, send)
            return
        scope["path_params"] = found.groupdict()
        await self._window(WebSocket(scope, receive, send))

    def upkeep(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What has to run as long as there are windows."""
        return (self._send_away(), *(self._recheck() for _ in range(RECHECKS_AT_ONCE)))

    async def drained(self) -> None:
        """Waits until no window is open any more."""
        await self._none_open.wait()

    async def _window(self, websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols", [])
        # Browsers cannot read why a handshake was refused: it is accepted, and closed with why.
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._open += 1
        self._none_open.clear()
        try:
            closed = await self._held(websocket)
            if closed is not None:
                await websocket.close(closed.code, _close_reason(closed.reason))
        except (WebSocketDisconnect, RuntimeError) as error:
            # The other end was gone before it could be told.
            _log.debug("a window was gone", why=str(error))
        finally:
            self._open -= 1
            if self._open == 0:
                self._none_open.set()

    async def _held(self, websocket: WebSocket) -> Closed | None:
        """Serves a window until it leaves (None) or has to (why)."""
        canvas_id = websocket.path_params["canvas_id"]
        if self._draining.is_set():
            return GOING_AWAY
        async with self._admitting:
            refused, asker, canvas = await self._admitted(websocket, canvas_id)
        if asker is None:
            return refused
        account_id = asker.account.account_id
        socket: Socket = websocket.scope["state"][SOCKET]
        states = States(
            canvas_id,
            language_of(websocket),
            send=socket.send_now,
            send_at_once=socket.send_at_once,
        )
        async with self._link.session(
            account_id,
            canvas_id,
            canvas.revision,
            line=states,
            incarnation=canvas.incarnation,
        ) as session:
            states.begin(session, account_id, self._watchings)
            window = _Window(
                websocket, canvas_id, canvas.incarnation, session, self._next_recheck()
            )
            self._windows[window] = None
            try:
                socket.attach(_End(session))
                # Who was on the way in when the others were sent away.
                return (
                    GOING_AWAY
                    if self._draining.is_set()
                    else await _told(websocket, session, states)
                )
            finally:
                del self._windows[window]
                states.end()

    async def _admitted(
        self, websocket: WebSocket, canvas_id: str
    ) -> tuple[Closed | None, Asker | None, canvas_pb2.GetSyncStatusResponse]:
        """Why a window may not be here, or else whose it is and where the canvas is."""
        nowhere = canvas_pb2.GetSyncStatusResponse()
        if not self._doorkeeper.allows_window(websocket):
            return FOREIGN_PAGE, None, nowhere
        try:
            asker = await self._doorkeeper.asker(websocket, slides=False)
            if asker is None:
                return SIGNED_OUT, None, nowhere
            status = await self._canvas.call(
                self._stub.GetSyncStatus,
                canvas_pb2.GetSyncStatusRequest(canvas_id=canvas_id),
                Behalf(account_id=asker.account.account_id),
            )
        except (NotFound, Invalid):
            return NO_CANVAS, None, nowhere
        except (Failure, grpc.aio.AioRpcError):
            return NOT_NOW, None, nowhere
        return None, asker, status

    async def _recheck(self) -> None:
        """Looks now and then whether windows may still be there, for ever."""
        while True:
            window = next(iter(self._windows), None)
            due = self._next_recheck() if window is None else window.recheck_at
            pause = due - asyncio.get_running_loop().time()
            if window is None or pause > 0:
                await asyncio.sleep(pause)
                continue
            del self._windows[window]
            self._windows[window] = None
            window.recheck_at = self._next_recheck()
            refused, _, canvas = await self._admitted(window.websocket, window.canvas_id)
            if refused is None and canvas.incarnation != window.incarnation:
                refused = NO_CANVAS
            if refused is None:
                window.session.catch_up(canvas.revision)
            elif refused is not NOT_NOW:
                window.session.end(refused)

    def _next_recheck(self) -> float:
        return asyncio.get_running_loop().time() + self._recheck_seconds

    async def _send_away(self) -> None:
        """Closes the windows one after another when the server goes away."""
        await self._draining.wait()
        loop = asyncio.get_running_loop()
        began, windows = loop.time(), tuple(self._windows)
        for place, window in enumerate(windows):
            await asyncio.sleep(began + SPREAD_SECONDS * place / len(windows) - loop.time())
            window.session.end(GOING_AWAY)


async def _told(websocket: WebSocket, session: Session, states: States) -> Closed | None:
    """Tells a window what its socket did not take at once, until it has left (None) or has to."""
    async for event in session.events():
        if isinstance(event, Closed):
            return None if event is LEFT else event
        if not isinstance(event, Mark):
            await websocket.send_text(event.decode())
        states.sent(event)
    return None


class _End:
    """The other end of a window's socket: does to its session what it does."""

    __slots__ = ("_session", "pause", "resume")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.pause = session.pause
        self.resume = session.resume

    def hear(self, text: bytes) -> None:
        try:
            frame = presence_from_text(text)
        except MalformedFrame as error:
            self._session.end(Closed(error.code, error.detail))
        else:
            self._session.move(frame.cursor, frame.drag)

    def leave(self) -> None:
        self._session.end(LEFT)


def _close_reason(text: str) -> str:
    """As much of a text as fits a close frame."""
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
