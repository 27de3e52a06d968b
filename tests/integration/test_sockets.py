"""WebSockets at the end of a real line, whose other end takes nothing any more."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from gateway.sockets import Socket

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
async def serving(app: App) -> AsyncIterator[tuple[str, int]]:
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="none",
            ws=Socket,
            lifespan="off",
            log_config=None,
            ws_ping_interval=0.1,
            ws_ping_timeout=0.1,
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
