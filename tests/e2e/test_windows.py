"""Very many windows that come back at once."""

import asyncio
import secrets
import time
from urllib.parse import urlsplit

import httpx

from bench.dialects import Gesso
from bench.sockets import Window, opened
from tests.support.suite import Up
from tests.support.windows import create, frame, window

ROOMS = 20
PER_ROOM = 50


async def test_a_thousand_windows_at_once_are_welcomed_and_hold_up_nobody(up: Up) -> None:
    """PR2 PR4"""
    async with httpx.AsyncClient(base_url=up.url, headers={"Origin": up.url}) as client:
        email = f"{secrets.token_hex(8)}@example.com"
        body = {"email": email, "password": "correct horse battery"}
        assert (await client.post("/api/auth/register", json=body)).status_code == 201
        for room in range(ROOMS):
            await create(client, f"room-{room}")

        reading = asyncio.create_task(reads(client))
        began = time.monotonic()
        windows = await asyncio.gather(
            *(come(client, f"room-{n % ROOMS}", n) for n in range(ROOMS * PER_ROOM))
        )
        storm = time.monotonic() - began
        reading.cancel()
        slowest = await reading
        async with window(client, "room-7", origin=up.url) as late:
            welcome = await frame(late, "welcome")

        for each in windows:
            each.close()
    assert welcome["number"] == PER_ROOM + 1
    assert {peer["number"] for peer in welcome["peers"]} == set(range(1, PER_ROOM + 1))
    assert slowest < storm / 2


async def come(client: httpx.AsyncClient, canvas_id: str, number: int) -> Window:
    """A window that was welcomed. Raises if it is closed before."""
    parts = urlsplit(str(client.base_url))
    assert parts.hostname is not None
    assert parts.port is not None
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    headers = f"Origin: {client.headers['Origin']}\r\nCookie: {cookies}\r\n"
    async with asyncio.timeout(60):
        return await opened(Gesso(), (parts.hostname, parts.port), canvas_id, number, headers)


async def reads(client: httpx.AsyncClient) -> float:
    """How long the slowest of reads took, one after another, until it is cancelled."""
    slowest = 0.0
    try:
        while True:
            began = time.monotonic()
            answer = await client.get("/api/canvas-projects/room-0")
            assert answer.status_code == 200
            slowest = max(slowest, time.monotonic() - began)
    except asyncio.CancelledError:
        return max(slowest, time.monotonic() - began)
