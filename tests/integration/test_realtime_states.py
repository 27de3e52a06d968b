"""Jobs and tasks on the realtime channel: gateways, all services and their stores are real."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

from services.generation import server as generation_server
from services.tasks.domain.terms import Terms
from tests.support.everything import Suite, ask, create, customer, order, suite
from tests.support.generation import House, generation_settings, house
from tests.support.services import ORIGIN
from tests.support.tasks import work_store

TERMS = Terms(lease=timedelta(minutes=1), running_per_account=5, attempts=3)
JOBS = "/api/runtime/external-generation/jobs"


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def all_of_it(home: House) -> AsyncIterator[Suite]:
    async with suite(home) as made:
        yield made


@asynccontextmanager
async def window(
    client: httpx.AsyncClient, canvas_id: str = "c", **options: Any
) -> AsyncIterator[ClientConnection]:
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    url = str(client.base_url).replace("http", "ws").rstrip("/")
    headers = {"Cookie": cookies, **options.pop("headers", {})}
    async with connect(
        f"{url}/api/canvas-projects/{canvas_id}/realtime",
        additional_headers=headers,
        origin=Origin(ORIGIN),
        **options,
    ) as socket:
        yield socket


async def until(
    socket: ClientConnection, done: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """What a window hears of jobs and tasks, up to the frame for which `done` holds."""
    heard = []
    async with asyncio.timeout(15):
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if frame["type"] in ("job", "task"):
                heard.append(frame)
            if done(frame):
                return heard


async def welcomed(socket: ClientConnection) -> None:
    await until(socket, lambda frame: frame["type"] == "welcome")


async def state(socket: ClientConnection, item_id: str, status: str) -> dict[str, Any]:
    heard = await until(
        socket,
        lambda frame: (
            item_id in (frame.get("jobId"), frame.get("id")) and frame["status"] == status
        ),
    )
    return heard[-1]


async def test_every_window_of_a_canvas_hears_where_its_jobs_are(all_of_it: Suite) -> None:
    """PR20"""
    anna, hand = all_of_it.anna, all_of_it.hand
    async with (
        all_of_it.other_window() as second,
        window(anna) as english,
        window(second, headers={"Accept-Language": "zh-CN,zh"}) as chinese,
    ):
        for socket in (english, chinese):
            await welcomed(socket)
        job_id = await order(anna)
        for socket in (english, chinese):
            await state(socket, job_id, "queued")
        (attempt,) = await hand.claim()
        await hand.update_phase(attempt, progress=30)
        labels = [
            (await until(socket, lambda frame: frame["type"] == "job" and frame["progress"] == 30))[
                -1
            ]["phaseLabel"]
            for socket in (english, chinese)
        ]
        await hand.fail(attempt)
        last = [await state(socket, job_id, "failed") for socket in (english, chinese)]
        listed = (await anna.get(JOBS)).json()["jobs"]

    assert labels == ["Processing", "正在处理"]
    assert last == [{"type": "job", **listed[0]}] * 2
    assert last[0]["canvasId"] == "c"


async def test_every_window_of_a_canvas_hears_where_its_tasks_are(all_of_it: Suite) -> None:
    """PR20"""
    anna = all_of_it.anna
    async with (
        all_of_it.other_window() as second,
        window(second) as socket,
        work_store(all_of_it.home.database_url) as work,
    ):
        await welcomed(socket)
        task_id = await ask(anna)
        await state(socket, task_id, "queued")
        claim = await work.claim("w", TERMS)
        assert claim is not None
        await work.succeed(claim)
        last = await state(socket, task_id, "succeeded")
        (listed,) = (await anna.get("/api/tasks")).json()["tasks"]

    assert last == {**listed, "type": "task", "taskType": "text"}


async def test_a_window_hears_of_its_own_canvas_and_account_only(all_of_it: Suite) -> None:
    """PR20"""
    anna = all_of_it.anna
    await create(anna, "d")
    async with customer(all_of_it.home, all_of_it.gateways[0]) as bert, window(anna) as socket:
        await create(bert, "c")
        await welcomed(socket)
        await order(bert)
        await ask(bert)
        await order(anna, "d")
        await ask(anna, None)
        mine = [await order(anna), await ask(anna)]
        waiting = set(mine)

        def is_mine(frame: dict[str, Any]) -> bool:
            waiting.difference_update([frame.get("jobId"), frame.get("id")])
            return not waiting

        heard = await until(socket, is_mine)

    assert {frame.get("jobId") or frame["id"] for frame in heard} == set(mine)


async def test_a_welcome_is_followed_by_what_is_not_over(all_of_it: Suite) -> None:
    """PR21"""
    anna, hand = all_of_it.anna, all_of_it.hand
    over, live = await order(anna), await order(anna)
    (attempt,) = await hand.claim()
    assert attempt.job_id == over
    await hand.fail(attempt)
    task_id = await ask(anna)

    async with window(anna) as socket:
        heard = await until(socket, lambda frame: frame.get("id") == task_id)
        while not any(frame.get("jobId") == live for frame in heard):
            heard += await until(socket, lambda frame: frame["type"] == "job")

    assert {frame.get("jobId") or frame["id"] for frame in heard} == {live, task_id}


async def test_nothing_is_lost_while_a_service_is_replaced(home: House) -> None:
    """PR21"""
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        settings = generation_settings(home.database_url, home.canvas_address)
        port = await first.enter_async_context(generation_server.serving(settings))
        made = await stack.enter_async_context(suite(home, f"127.0.0.1:{port}"))
        async with window(made.anna) as socket:
            await welcomed(socket)
            job_id = await order(made.anna)
            await state(socket, job_id, "queued")
            await first.aclose()

            # At the other instance, of which this gateway does not know.
            hand = home.hand()
            (attempt,) = await hand.claim()
            await hand.fail(attempt)

            again = generation_settings(
                home.database_url, home.canvas_address, listen=f"127.0.0.1:{port}"
            )
            await stack.enter_async_context(generation_server.serving(again))
            await state(socket, job_id, "failed")


async def test_a_window_that_fell_behind_hears_how_it_ended_meanwhile(all_of_it: Suite) -> None:
    """PR21"""
    anna, hand = all_of_it.anna, all_of_it.hand
    drag = [{"id": f"{n:0150}", "x": n, "y": 0, "width": 1, "height": 1} for n in range(50)]
    async with window(anna) as moving, window(anna, max_queue=1) as slow:
        await welcomed(moving)
        await welcomed(slow)
        job_id = await order(anna)
        await state(slow, job_id, "queued")
        (attempt,) = await hand.claim()
        for number in range(400):
            cursor = {"x": number, "y": 0}
            frame = {"type": "presence", "cursor": cursor, "drag": drag}
            await moving.send(json.dumps(frame))
        await hand.fail(attempt)
        await state(moving, job_id, "failed")

        await state(slow, job_id, "failed")
