"""WebSockets at the end of a real line, whose other end takes nothing any more, or for a while."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from gateway.pace import Ticks
from gateway.rooms.peers import NOWHERE, Peer
from gateway.rooms.room import Place, Room
from gateway.sockets import SOCKET, Socket, text_message

# More than a line takes that nobody reads, where the other end takes little.
MUCH = b"x" * 16_000_000
LITTLE = 16_000
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class App:
    """Sends much to whoever comes, does what it is told to then, and waits for the end."""

    def __init__(self, then: dict[str, Any] | None = None) -> None:
        self._then = then
        self.ended = asyncio.Event()

    async def __call__(
        self,
        _scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": MUCH})
        try:
            if self._then is not None:
                await send(self._then)
            while (await receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self.ended.set()


@asynccontextmanager
async def serving(app: Any, *, ping_seconds: float = 0.1) -> AsyncIterator[tuple[str, int]]:
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="none",
            ws=Socket,
            lifespan="off",
            log_config=None,
            ws_ping_interval=ping_seconds,
            ws_ping_timeout=ping_seconds,
        )
    )
    running = asyncio.create_task(server._serve(sockets=[bound]))
    try:
        yield bound.getsockname()
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize("then", [None, {"type": "websocket.close", "code": 4404}])
async def test_who_reads_nothing_is_not_waited_for(then: dict[str, Any] | None) -> None:
    """PR9"""
    app = App(then)
    async with serving(app) as address:
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
            line.connect(address)
            line.sendall(HANDSHAKE)

            await asyncio.wait_for(app.ended.wait(), 5)


class Holds:
    """Has whoever comes attached, and sends much."""

    def __init__(self) -> None:
        self.socket: asyncio.Future[Socket] = asyncio.get_running_loop().create_future()
        self.pinged = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        socket: Socket = scope["state"][SOCKET]
        socket.attach(self)
        socket.send_now(text_message(MUCH))
        self.socket.set_result(socket)
        await self.left.wait()

    def hear(self, text: bytes) -> None:
        assert text == b"after the pings"
        self.pinged.set()

    def leave(self) -> None:
        self.left.set()

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


async def test_who_pings_and_reads_nothing_has_one_answer_waiting() -> None:
    """PR8"""
    app = Holds()
    async with (
        serving(app, ping_seconds=20) as (host, port),
        connect(f"ws://{host}:{port}", max_size=None, max_queue=1) as window,
    ):
        window.transport.pause_reading()
        socket = await app.socket
        before = socket.transport.get_write_buffer_size()
        pongs = [await window.ping(b"%0100d" % number) for number in range(10_000)]
        await window.send("after the pings")
        await app.pinged.wait()
        waits = socket.transport.get_write_buffer_size()

        window.transport.resume_reading()
        await asyncio.wait_for(pongs[-1], 10)

    assert 0 < waits <= before


class Rooms:
    """Has whoever comes in one room, and shows them peers at other gateways."""

    def __init__(self) -> None:
        self.room = Room(Place("us_a", "c"), 1, Ticks(asyncio.get_running_loop().time()))
        self.busy: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        window = _Window(self, f"ws_{len(self.room) + 1}", scope["state"][SOCKET])
        self.room.enter(window.session_id, window)
        self.room.admit(window.session_id, len(self.room), NOWHERE)
        window.socket.attach(window)
        await window.left.wait()

    def move(self, number: int) -> None:
        """A peer at another gateway drags much."""
        drag = b'"%s"' % (b"x" * 60_000)
        self.room.hear_of([Peer("other", 64, (b"%d" % number, drag))], [])


class _Window:
    """A socket in the room."""

    def __init__(self, rooms: Rooms, session_id: str, socket: Socket) -> None:
        self.session_id = session_id
        self.socket = socket
        self.show = self.begin = socket.send_now
        self.left = asyncio.Event()
        self._rooms = rooms

    def hear(self, text: Any) -> None:
        raise AssertionError(text)

    def leave(self) -> None:
        self._rooms.room.leave(self.session_id)
        self.left.set()

    def pause(self) -> None:
        self._rooms.busy.add(self.session_id)
        self._rooms.room.pause(self.session_id)

    def resume(self) -> None:
        self._rooms.busy.discard(self.session_id)
        self._rooms.room.resume(self.session_id)


async def cursors(socket: ClientConnection, until: int) -> list[int]:
    """Where a window sees the peer, until it is there."""
    seen: list[int] = []
    async with asyncio.timeout(10):
        while not seen or seen[-1] != until:
            frame = json.loads(await socket.recv())
            if frame["type"] == "peer":
                seen.append(frame["cursor"])
    return seen


async def test_who_stops_reading_sees_the_newest_state_after_and_holds_nobody_up() -> None:
    """PR7 PR8"""
    rooms = Rooms()
    async with serving(rooms, ping_seconds=20) as (host, port):
        url = f"ws://{host}:{port}"
        async with connect(url) as reads, connect(url, max_queue=1) as stops:
            for socket in (reads, stops):
                assert json.loads(await socket.recv())["type"] == "welcome"
            stops.transport.pause_reading()
            moves = 0
            while not rooms.busy:
                moves += 1
                rooms.move(moves)
                await cursors(reads, until=moves)
            for last in range(moves + 1, moves + 101):
                rooms.move(last)
                assert await cursors(reads, until=last) == [last]
            waits = [len(rooms.busy)]
            stops.transport.resume_reading()
            late = await cursors(stops, until=last)
            rooms.move(last + 1)
            after = await cursors(stops, until=last + 1)

    assert waits == [1]
    # What was on its way, and then the newest only.
    assert late == [*range(1, moves + 1), last]
    assert after == [last + 1]
