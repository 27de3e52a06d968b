"""Windows that sleep, are quiet or go without a word, on a gateway that asks often."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.support.services import ORIGIN, browser
from tests.support.windows import create, frame, presence, realtime, window

PING_SECONDS = 0.5


@pytest.fixture(scope="session")
async def address(shared_database: str, objects_url: str) -> AsyncIterator[str]:
    async with realtime(
        shared_database,
        objects_url,
        heartbeat_seconds=PING_SECONDS,
        realtime_ping_seconds=PING_SECONDS,
    ) as found:
        yield found


@pytest.fixture
async def anna(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(address) as client:
        await create(client, "c")
        yield client


def fall_asleep(sleeper: ClientConnection) -> None:
    """Has it read nothing and answer no ping, as a process that was stopped (B4-02)."""
    sleeper.transport.pause_reading()


# A browser of its own: says its number, then why it was closed.
SLEEPER = """
import json, sys
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
with connect(sys.argv[1], additional_headers={"Cookie": sys.argv[2]}, origin=sys.argv[3]) as socket:
    print(json.loads(socket.recv())["number"], flush=True)
    try:
        while True:
            socket.recv()
    except ConnectionClosed:
        print("closed", flush=True)
"""


def dragged(number: int) -> str:
    """A presence of some 15 KB."""
    box = {"x": number, "y": 0, "width": 1, "height": 1}
    return presence(number, drag=[{"id": f"{n:0190}", **box} for n in range(60)])


async def test_a_window_that_sleeps_is_gone_and_wakes_as_another(anna: httpx.AsyncClient) -> None:
    """PR9"""
    async with window(anna) as first, window(anna) as second:
        one = await frame(first, "welcome")
        two = await frame(second, "welcome")
        fall_asleep(first)
        left = await frame(second, "leave")
        async with window(anna) as third:
            three = await frame(third, "welcome")
        first.transport.resume_reading()
        with pytest.raises(ConnectionClosed):
            await frame(first, "never")

    assert left["id"] == one["selfId"]
    assert three["number"] == one["number"]
    assert [peer["id"] for peer in three["peers"]] == [two["selfId"]]


async def test_a_process_that_is_stopped_is_gone_and_its_number_is_free(
    anna: httpx.AsyncClient,
) -> None:
    """PR9"""
    url = f"{str(anna.base_url).replace('http', 'ws').rstrip('/')}/api/canvas-projects/c/realtime"
    cookies = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
    async with window(anna) as first:
        await frame(first, "welcome")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SLEEPER, url, cookies, ORIGIN), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            number = await process.stdout.readline()
            joined = await frame(first, "peer")
            process.send_signal(signal.SIGSTOP)
            left = await frame(first, "leave")
            async with window(anna) as third:
                three = await frame(third, "welcome")
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(10):
                woke = await process.stdout.readline()
        finally:
            process.kill()
            await process.wait()

    assert left["id"] == joined["id"]
    assert (int(number), three["number"]) == (2, 2)
    assert woke == b"closed\n"


async def test_a_window_that_is_quiet_stays(anna: httpx.AsyncClient) -> None:
    """PR2 PR9 PR11"""
    async with window(anna) as first, window(anna) as second:
        before = [await frame(socket, "welcome") for socket in (first, second)]
        for _ in range(5):
            await frame(first, "heartbeat")
        async with window(anna) as third:
            after = await frame(third, "welcome")

    numbers = {each["selfId"]: each["number"] for each in before}
    assert {peer["id"]: peer["number"] for peer in after["peers"]} == numbers
    assert after["number"] == 3


async def test_nothing_is_heard_of_a_window_after_it_left(anna: httpx.AsyncClient) -> None:
    """PR9"""
    async with window(anna) as first:
        await frame(first, "welcome")
        async with window(anna) as second:
            two = await frame(second, "welcome")
            for number in range(30):
                await second.send(dragged(number))
            second.transport.abort()
        heard: list[dict[str, Any]] = []
        async with window(anna) as third, asyncio.timeout(10):
            three = await frame(third, "welcome")
            while not heard or heard[-1].get("id") != three["selfId"]:
                heard.append(json.loads(await first.recv()))

    kinds = [each["type"] for each in heard if each.get("id") == two["selfId"]]
    assert kinds[-1] == "leave"
    assert kinds.count("leave") == 1
    assert three["number"] == two["number"]
    assert three["peers"][0]["number"] == 1
