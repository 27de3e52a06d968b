"""Windows on canvases, as a test has them open: a gateway with canvas and presence behind it."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from services.canvas import server as canvas_server
from tests.support.services import (
    NOWHERE,
    ORIGIN,
    canvas_settings,
    gateway,
    gateway_settings,
    presence_service,
    presence_settings,
)


@asynccontextmanager
async def realtime(
    database: str,
    objects_url: str,
    *,
    heartbeat_seconds: float = 15,
    tells: bool = True,
    **changes: object,
) -> AsyncIterator[str]:
    """A gateway with canvas and presence behind it; canvas `tells` presence what is committed."""
    settings_of_presence = presence_settings(heartbeat_seconds=heartbeat_seconds)
    async with presence_service(settings_of_presence) as presence_port:
        presence = f"127.0.0.1:{presence_port}"
        settings = canvas_settings(
            database, objects_url, presence_address=presence if tells else NOWHERE
        )
        async with canvas_server.serving(settings) as canvas_port:
            addresses = {"canvas": f"127.0.0.1:{canvas_port}", "presence": presence}
            async with gateway(
                gateway_settings(database, objects_url, addresses, **changes)
            ) as address:
                yield address


async def create(client: httpx.AsyncClient, canvas_id: str) -> None:
    operation = {"type": "create_canvas", "canvas": {"title": "A canvas"}}
    await change(client, canvas_id, operation)


async def change(client: httpx.AsyncClient, canvas_id: str, *operations: Any) -> None:
    answer = await client.patch(
        f"/api/canvas-projects/{canvas_id}/operations",
        json={
            "mutationId": secrets.token_hex(8),
            "baseRevision": 0,
            "operations": list(operations),
        },
    )
    assert answer.status_code == 200, answer.text


@asynccontextmanager
async def window(
    client: httpx.AsyncClient, canvas_id: str = "c", **options: Any
) -> AsyncIterator[ClientConnection]:
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    url = str(client.base_url).replace("http", "ws")
    async with connect(
        f"{url}/api/canvas-projects/{canvas_id}/realtime".replace("//api", "/api"),
        **{"additional_headers": {"Cookie": cookies}, "origin": ORIGIN, **options},
    ) as socket:
        yield socket


async def frame(socket: ClientConnection, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = json.loads(await socket.recv())
            if found["type"] == kind:
                return found


async def close_code(socket: ClientConnection) -> int:
    async with asyncio.timeout(10):
        with suppress(ConnectionClosed):
            async for _ in socket:
                pass
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


def presence(x: float, **more: Any) -> str:
    return json.dumps({"type": "presence", "cursor": {"x": x, "y": 0}, "drag": None, **more})
