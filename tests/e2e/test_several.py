"""Two gateways and two instances of presence, as one for the windows, whatever is killed."""

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from tests.support.suite import Up, is_well, start, stop, until
from tests.support.windows import create, presence, window


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = start(tmp_path_factory.mktemp("several") / "var", "--presence", "2", gateways=2)
    yield up
    stop(up)


class Window:
    """A window that keeps all frames, and what it takes to be true."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        self.peers: dict[str, dict[str, Any]] = {}
        self.self_id = ""
        self.number = 0

    async def read(self) -> None:
        """Takes the next frame, within 20 seconds."""
        async with asyncio.timeout(20):
            frame = json.loads(await self.socket.recv())
        self.frames.append(frame)
        match frame["type"]:
            case "welcome":
                self.self_id, self.number = frame["selfId"], frame["number"]
                self.peers = {peer["id"]: peer for peer in frame["peers"]}
            case "peer":
                self.peers[frame["id"]] = frame
            case "peers":
                self.peers |= {peer["id"]: peer for peer in frame["peers"]}
            case "leave":
                del self.peers[frame["id"]]

    async def sees(self, other: "Window", x: float) -> None:
        """Reads until the other one is seen there."""
        while (self.peers.get(other.self_id) or {}).get("cursor") != {"x": x, "y": 0}:
            await self.read()


@asynccontextmanager
async def windows(up: Up) -> AsyncIterator[tuple[httpx.AsyncClient, list[Window]]]:
    """Two windows at the first gateway and two at the second, on one canvas."""
    parts = urlsplit(up.url)
    second_url = f"http://{parts.hostname}:{(parts.port or 0) + 1}"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=up.url, headers={"Origin": up.url})
        )
        email = f"{secrets.token_hex(8)}@example.com"
        body = {"email": email, "password": "correct horse battery"}
        assert (await client.post("/api/auth/register", json=body)).status_code == 201
        await create(client, "c")
        found = []
        # Whatever an earlier test has killed is back.
        until(lambda: is_well(up.url) and is_well(second_url))
        for url in (up.url, second_url, up.url, second_url):
            other = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, cookies=client.cookies)
            )
            socket = await stack.enter_async_context(window(other, origin=up.url))
            found.append(Window(socket))
            await found[-1].read()
        yield client, found


async def test_windows_of_two_gateways_and_instances_see_the_same(several: Up) -> None:
    """PR2 PR10 PR22"""
    async with windows(several) as (_, open_windows):
        for x, mover in enumerate(open_windows, start=1):
            await mover.socket.send(presence(x))
            for other in open_windows:
                if other is not mover:
                    await other.sees(mover, x)

        assert [each.number for each in open_windows] == [1, 2, 3, 4]
        for each in open_windows:
            numbers = {peer["number"] for peer in each.peers.values()}
            assert numbers == {1, 2, 3, 4} - {each.number}


@pytest.mark.parametrize("name", ["presence", "presence-2"])
async def test_nobody_sees_an_instance_of_presence_die(several: Up, name: str) -> None:
    """PR16 PR22"""
    async with windows(several) as (_, open_windows):
        mover = open_windows[0]
        victim = next(each for each in several.ps() if each["name"] == name)
        os.kill(victim["pid"], signal.SIGKILL)

        for x, other in enumerate(open_windows[1:], start=1):
            # What is said while its instance is away is said when there is one.
            await mover.socket.send(presence(x))
            await other.sees(mover, x)
        late = open_windows[3]
        await late.socket.send(presence(9))
        await mover.sees(late, 9)

        for each in open_windows:
            assert [frame["type"] for frame in each.frames].count("welcome") == 1
            assert "leave" not in [frame["type"] for frame in each.frames]
            numbers = {peer["number"] for peer in each.peers.values()}
            assert numbers == {1, 2, 3, 4} - {each.number}


async def test_the_windows_of_a_gateway_that_is_killed_are_gone(several: Up) -> None:
    """PR9 PR22"""
    async with windows(several) as (_, open_windows):
        stays = open_windows[0]
        gone = {open_windows[1].self_id, open_windows[3].self_id}
        while len(stays.peers) < 3:
            await stays.read()
        victim = next(each for each in several.ps() if each["name"] == "gateway-2")
        os.kill(victim["pid"], signal.SIGKILL)

        while gone & stays.peers.keys():
            await stays.read()

        assert stays.peers.keys() == {open_windows[2].self_id}


async def test_without_valkey_the_suite_says_so_and_heals(several: Up) -> None:
    """PR23"""
    async with windows(several) as (client, open_windows):
        first, elsewhere, second, _ = open_windows
        victim = next(each for each in several.ps() if each["name"] == "valkey")
        # Not killed, or it would be back at once.
        os.kill(victim["pid"], signal.SIGSTOP)
        try:
            ready = (await client.get("/readyz", timeout=10)).json()
            await first.socket.send(presence(1))
            await second.sees(first, 1)
        finally:
            os.kill(victim["pid"], signal.SIGKILL)
        await elsewhere.sees(first, 1)

        assert ready["status"] == "degraded"
        assert ready["checks"]["valkey"] != "ok"
        until(several.is_well)
        await first.socket.send(presence(2))
        await elsewhere.sees(first, 2)
