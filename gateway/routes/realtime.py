"""The realtime channel: one WebSocket a window."""

import asyncio
import random
from collections.abc import Coroutine
from functools import partial
from typing import Any

import grpc
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

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
SUBPROTOCOL = "gesso.v1"
# Windows that are sent away come back to the other gateways one after another.
SPREAD_SECONDS = 3.0
# A control frame has 125 bytes, two of which are the code (RFC 6455, 5.5).
MAX_REASON_BYTES = 123

SIGNED_OUT = Closed(4401, "Nobody is signed in, or not any more.")
FOREIGN_PAGE = Closed(4403, "A page of this origin may not connect.")
NO_CANVAS = Closed(4404, "There is no such canvas.")
GOING_AWAY = Closed(1001, "The server goes away; connect again.")
NOT_NOW = Closed(1013, "The server cannot tell now; connect again.")

_log = logger("gateway.realtime")


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
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def route(self) -> WebSocketRoute:
        """Where it is."""
        return WebSocketRoute(PATH, self._window)

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
        refused, asker, revision = await self._admitted(websocket, canvas_id)
        if refused is not None or asker is None:
            return refused
        account_id = asker.account.account_id
        socket: Socket = websocket.scope["state"][SOCKET]
        states = States(canvas_id, language_of(websocket), send_at_once=socket.send_at_once)
        async with self._link.session(
            account_id, canvas_id, revision, pass_on=states.pass_on
        ) as session:
            with states.told_to(session, account_id, self._watchings):
                socket.attach(partial(_hear, session))
                return await _first_of(
                    self._until_gone(websocket, session),
                    self._write(websocket, session, states),
                    self._recheck(websocket, canvas_id, session),
                    self._go_away(),
                )

    async def _admitted(
        self, websocket: WebSocket, canvas_id: str
    ) -> tuple[Closed | None, Asker | None, int]:
        """Why a window may not be here, or else whose it is and where the canvas is."""
        if not self._doorkeeper.allows_window(websocket):
            return FOREIGN_PAGE, None, 0
        try:
            asker = await self._doorkeeper.asker(websocket, slides=False)
            if asker is None:
                return SIGNED_OUT, None, 0
            status = await self._canvas.call(
                self._stub.GetSyncStatus,
                canvas_pb2.GetSyncStatusRequest(canvas_id=canvas_id),
                Behalf(account_id=asker.account.account_id),
            )
        except (NotFound, Invalid):
            return NO_CANVAS, None, 0
        except (Failure, grpc.aio.AioRpcError):
            return NOT_NOW, None, 0
        return None, asker, status.revision

    async def _until_gone(self, websocket: WebSocket, session: Session) -> Closed | None:
        # What comes here beside the end was said before the window was admitted.
        while (message := await websocket.receive())["type"] != "websocket.disconnect":
            _hear(session, message.get("text") or "")
        return None

    async def _write(self, websocket: WebSocket, session: Session, states: States) -> Closed | None:
        async for event in session.events():
            if isinstance(event, Closed):
                return event
            if not isinstance(event, Mark):
                await websocket.send_text(event.decode())
            states.sent(event)
        return None

    async def _recheck(
        self, websocket: WebSocket, canvas_id: str, session: Session
    ) -> Closed | None:
        """Looks now and then whether the window may still be here."""
        while True:
            await asyncio.sleep(self._recheck_seconds)
            refused, _, revision = await self._admitted(websocket, canvas_id)
            if refused is NOT_NOW:
                continue
            if refused is not None:
                return refused
            session.revision = revision

    async def _go_away(self) -> Closed | None:
        await self._draining.wait()
        await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))  # noqa: S311 - spreads, hides nothing
        return GOING_AWAY


def _hear(session: Session, text: str) -> None:
    """Does what a window says, or ends it for that."""
    try:
        frame = presence_from_text(text)
    except MalformedFrame as error:
        session.end(Closed(error.code, error.detail))
    else:
        session.move(frame.cursor, frame.drag)


def _close_reason(text: str) -> str:
    """As much of a text as fits a close frame."""
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


async def _first_of(*ends: Coroutine[Any, Any, Closed | None]) -> Closed | None:
    """What the first one to end says; the others are cancelled."""
    tasks = [asyncio.create_task(end) for end in ends]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task for task in tasks if task in done).result()
