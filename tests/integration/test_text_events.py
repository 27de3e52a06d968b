"""Tasks and their text streams through a real gateway, tasks server and worker."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from gesso.tasks.v1 import tasks_pb2 as pb

from gateway import sse
from gateway.routes.tasks import TaskRoutes
from gateway.texts import Texts
from servicekit import client
from servicekit.identity import Behalf
from services.tasks import server as tasks_server
from tests.support.services import NOWHERE, TOKEN, browser, gateway, gateway_settings
from tests.support.tasks import Pen, tasks_settings, worker, worker_settings


@pytest.fixture
def pen() -> Pen:
    """The model, which says what the test has it say."""
    return Pen()


@pytest.fixture
async def anna(database: str, objects_url: str, pen: Pen) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        tasks_server.serving(tasks_settings(database)) as port,
        worker(worker_settings(database, drain_seconds=0), pen.models()),
        gateway(gateway_settings(database, objects_url, {"tasks": f"127.0.0.1:{port}"})) as address,
        browser(address) as client,
    ):
        yield client


async def ask(client: httpx.AsyncClient, **fields: Any) -> Any:
    task = {"type": "text", "prompt": "a lantern", **fields}
    return await client.post("/api/tasks", json=task)


async def events(
    client: httpx.AsyncClient, task_id: str, **options: Any
) -> AsyncIterator[tuple[str, str, Any]]:
    """Id, name and data of each event."""
    async with client.stream("GET", f"/api/tasks/{task_id}/text-events", **options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        lines = answer.aiter_lines()
        assert await anext(lines) == ": connected"
        event: dict[str, str] = {}
        async for line in lines:
            if line:
                field, _, value = line.partition(": ")
                event[field] = value
            elif "event" in event:
                yield event.get("id", ""), event["event"], json.loads(event["data"])
                event = {}


async def test_a_text_streams_with_rising_ids_and_ends(anna: httpx.AsyncClient, pen: Pen) -> None:
    """GW11"""
    created = await ask(anna, metadata={"nodeId": "n1"}, projectId="c")
    task_id = created.json()["id"]
    stream = events(anna, task_id)
    pen.put("One ")
    first = await anext(stream)
    pen.put("two.")
    second = await anext(stream)
    pen.end()
    last = await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    detail = (await anna.get(f"/api/tasks/{task_id}")).json()

    assert created.status_code == 202
    assert created.json()["clientContext"] == {"nodeId": "n1"}
    assert first == ("1", "delta", {"sequence": 1, "content": "One "})
    assert second == ("2", "delta", {"sequence": 2, "content": "two."})
    assert last == (
        "",
        "terminal",
        {"status": "succeeded", "finalText": "One two.", "textDraft": None, "complete": True},
    )
    assert (detail["status"], detail["finalText"]) == ("succeeded", "One two.")
    assert detail["logs"]


@pytest.mark.parametrize("how", ["query", "header", "both"])
async def test_a_reader_resumes_after_its_cursor(
    anna: httpx.AsyncClient, pen: Pen, how: str
) -> None:
    """GW11"""
    task_id = (await ask(anna)).json()["id"]
    stream = events(anna, task_id)
    for piece in ("a", "b"):
        pen.put(piece)
        await anext(stream)
    pen.end()
    options: dict[str, Any] = {
        "query": {"params": {"after": "1"}},
        "header": {"headers": {"Last-Event-ID": "1"}},
        "both": {"params": {"after": "1"}, "headers": {"Last-Event-ID": "0"}},
    }[how]

    resumed = [event async for event in events(anna, task_id, **options)]

    assert [(number, name) for number, name, _ in resumed] == [("2", "delta"), ("", "terminal")]


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "", "9" * 30, "٣"])
async def test_a_cursor_is_a_number(anna: httpx.AsyncClient, cursor: str) -> None:
    """GW11"""
    task_id = (await ask(anna)).json()["id"]

    answer = await anna.get(f"/api/tasks/{task_id}/text-events", params={"after": cursor})

    assert answer.status_code == 400
    assert answer.json()["reason"] == "invalid_cursor"


async def test_the_stream_goes_on_when_a_tasks_server_is_replaced(
    database: str, objects_url: str, pen: Pen
) -> None:
    """GW11"""
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        port = await first.enter_async_context(tasks_server.serving(tasks_settings(database)))
        await stack.enter_async_context(
            worker(worker_settings(database, drain_seconds=0), pen.models())
        )
        address = await stack.enter_async_context(
            gateway(gateway_settings(database, objects_url, {"tasks": f"127.0.0.1:{port}"}))
        )
        client = await stack.enter_async_context(browser(address))
        task_id = (await ask(client)).json()["id"]
        stream = events(client, task_id)
        pen.put("before ")
        read = [await anext(stream)]

        await first.aclose()
        again = tasks_settings(database, listen=f"127.0.0.1:{port}")
        await stack.enter_async_context(tasks_server.serving(again))
        pen.put("after")
        pen.end()
        read += [event async for event in stream]

    assert [number for number, _, _ in read] == ["1", "2", ""]
    assert read[-1][2]["finalText"] == "before after"


async def test_a_gateway_that_goes_away_hints_to_come_back(
    database: str, objects_url: str, pen: Pen
) -> None:
    """GW11"""
    async with (
        tasks_server.serving(tasks_settings(database)) as port,
        worker(worker_settings(database, drain_seconds=0), pen.models()),
        AsyncExitStack() as stack,
    ):
        leaving = AsyncExitStack()
        settings = gateway_settings(
            database, objects_url, {"tasks": f"127.0.0.1:{port}"}, drain_seconds=10
        )
        address = await leaving.enter_async_context(gateway(settings))
        client = await stack.enter_async_context(browser(address))
        task_id = (await ask(client)).json()["id"]
        answer = await stack.enter_async_context(
            client.stream("GET", f"/api/tasks/{task_id}/text-events")
        )
        lines = answer.aiter_lines()
        assert await anext(lines) == ": connected"

        await leaving.aclose()
        rest = [line async for line in lines]

    assert "retry: 1000" in rest


async def test_a_stream_that_is_moved_at_once_begins_with_a_comment_too() -> None:
    """GW11"""
    draining = asyncio.Event()
    draining.set()
    async with client.connected(NOWHERE, caller="tests", tokens=(TOKEN,)) as nobody:
        routes = TaskRoutes(nobody, Texts(nobody, draining))
        stream = routes._events(pb.WatchTextEventsRequest(), Behalf())

        assert [chunk async for chunk in stream] == [sse.CONNECTED, sse.MOVED]


async def test_the_same_key_makes_one_task(anna: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": secrets.token_hex(4)}
    body = {"type": "text", "prompt": "a lantern"}
    answers = await asyncio.gather(
        *(anna.post("/api/tasks", json=body, headers=key) for _ in range(6))
    )
    other = await anna.post("/api/tasks", json={**body, "prompt": "other"}, headers=key)
    both = await anna.post("/api/tasks", json={**body, "clientOperationId": "x"}, headers=key)

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted("idempotent-replayed" in answer.headers for answer in answers) == (
        [False] + [True] * 5
    )
    assert (other.status_code, other.json()["reason"]) == (409, "idempotency_key_reused")
    assert both.status_code == 422


async def test_someone_elses_task_is_none(anna: httpx.AsyncClient) -> None:
    task_id = (await ask(anna)).json()["id"]
    async with browser(str(anna.base_url)) as bert:
        answers = [
            await bert.get(f"/api/tasks/{task_id}"),
            await bert.get(f"/api/tasks/{task_id}/text-events"),
        ]
        listed = (await bert.get("/api/tasks")).json()

    assert [answer.status_code for answer in answers] == [404, 404]
    assert listed == {"tasks": []}


async def test_a_list_is_chosen_by_canvas_and_node(anna: httpx.AsyncClient) -> None:
    for node in ("a", "b"):
        await ask(anna, projectId="c", metadata={"nodeId": node})
    await ask(anna)

    page = (await anna.get("/api/tasks", params={"projectId": "c", "nodeId": "b"})).json()
    everything = (await anna.get("/api/tasks", params={"limit": 2})).json()

    assert [task["clientContext"] for task in page["tasks"]] == [{"nodeId": "b"}]
    assert len(everything["tasks"]) == 2
    assert everything["nextPageToken"]


@pytest.mark.parametrize(
    "task",
    [
        {"type": "poem"},
        {"prompt": ""},
        {"prompt": "x" * 70_000},
        {"model": "nobody"},
        {"surprise": 1},
        {"metadata": {"nodeId": ""}},
    ],
)
async def test_what_cannot_be_a_task_is_refused(
    anna: httpx.AsyncClient, task: dict[str, Any]
) -> None:
    answer = await ask(anna, **task)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"]
