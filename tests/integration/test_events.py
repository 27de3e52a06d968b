"""The one stream of events that a page needs, with all services behind it."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from gesso.generation.v1 import generation_pb2 as pb

from gateway.routes import events as events_module
from gateway.routes.outbox import (
    JOB,
    MAX_STATES,
    MAX_TEXT_EVENTS,
    Outbox,
    Place,
    TextError,
    place_from_header,
)
from gateway.watching import News, Watching
from services.generation import server as generation_server
from services.tasks import server as tasks_server
from services.tasks.domain.terms import Terms
from services.tasks.work_store import Claim, WorkStore
from tests.support.everything import Suite, ask, create, customer, order, suite
from tests.support.generation import House, generation_settings, house
from tests.support.services import browser, gateway, gateway_settings
from tests.support.tasks import tasks_settings, work_store

TERMS = Terms(lease=timedelta(minutes=1), running_per_account=5, attempts=3)


@dataclass
class Event:
    """One event, and the last id up to it."""

    name: str
    data: Any
    last_id: str


class Page:
    """One connection to the stream, and where it is."""

    def __init__(self, answer: httpx.Response, last_id: str) -> None:
        self.answer = answer
        self.last_id = last_id
        self.comments: list[str] = []
        self._lines = answer.aiter_lines()

    async def __anext__(self) -> Event:
        """The next event, as EventSource gives it."""
        name, data = "", ""
        async for line in self._lines:
            field, _, value = line.partition(": ")
            match field:
                case "id":
                    self.last_id = value
                case "event":
                    name = value
                case "data":
                    data = value
                case "" if not line:
                    if data:
                        return Event(name, json.loads(data), self.last_id)
                    name = ""
                case _:
                    self.comments.append(line)
        raise StopAsyncIteration

    async def until(self, done: Callable[[Event], bool]) -> list[Event]:
        """What is told, up to the event for which `done` holds."""
        told = []
        async with asyncio.timeout(15):
            while True:
                told.append(await self.__anext__())
                if done(told[-1]):
                    return told

    async def state(self, item_id: str, status: str) -> Event:
        """The event that tells a state."""
        return (await self.until(lambda event: states(event) == (item_id, status)))[-1]

    async def moved(self, previous: str) -> None:
        """Waits until the place is another one."""
        async with asyncio.timeout(15):
            async for line in self._lines:
                if line.startswith("id: ") and line != f"id: {previous}":
                    self.last_id = line.removeprefix("id: ")
                    return

    async def rest(self) -> list[str]:
        """All lines to the end."""
        async with asyncio.timeout(15):
            return [line async for line in self._lines]


def states(event: Event) -> tuple[str, str]:
    """Which job or task an event tells of, and its status."""
    return event.data.get("jobId") or event.data.get("id"), event.data.get("status", "")


@asynccontextmanager
async def page(
    client: httpx.AsyncClient, *texts: str, last_id: str = "", **headers: str
) -> AsyncIterator[Page]:
    if last_id:
        headers["Last-Event-ID"] = last_id
    async with client.stream(
        "GET", "/api/events", params={"text": list(texts)}, headers=headers
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Page(answer, last_id)


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def all_of_it(home: House) -> AsyncIterator[Suite]:
    async with suite(home, realtime_recheck_seconds=0.05) as made:
        yield made


@pytest.fixture
async def anna(all_of_it: Suite) -> httpx.AsyncClient:
    return all_of_it.anna


@pytest.fixture(scope="session")
async def lone_gateway(shared_database: str, objects_url: str) -> AsyncIterator[str]:
    """A gateway whose services are all away."""
    settings = gateway_settings(shared_database, objects_url, {}, realtime_recheck_seconds=0.05)
    async with gateway(settings) as address:
        yield address


@pytest.fixture
async def visitor(lone_gateway: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody at it."""
    async with browser(lone_gateway) as client:
        yield client


@pytest.fixture
async def work(home: House) -> AsyncIterator[WorkStore]:
    async with work_store(home.database_url) as store:
        yield store


async def claimed(work: WorkStore, owner: str = "w") -> Claim:
    claim = await work.claim(owner, TERMS)
    assert claim is not None
    return claim


async def test_jobs_and_tasks_are_told_as_lists_show_them(
    all_of_it: Suite, anna: httpx.AsyncClient, work: WorkStore
) -> None:
    """GW13"""
    before = await order(anna)
    async with page(anna, **{"Accept-Language": "zh"}) as stream:
        await stream.state(before, "queued")
        (attempt,) = await all_of_it.hand.claim()
        label = (await stream.state(before, "running")).data["phaseLabel"]
        task_id = await ask(anna, None)
        await stream.state(task_id, "queued")
        await work.succeed(await claimed(work))
        task = await stream.state(task_id, "succeeded")
    (listed,) = (await anna.get("/api/tasks")).json()["tasks"]

    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    assert stream.answer.headers["cache-control"] == "no-cache, no-transform"
    assert stream.comments[0] == ": connected"
    assert label == "正在生成"
    assert attempt.job_id == before
    assert (task.name, task.data) == ("task", listed)


async def test_another_accounts_jobs_and_tasks_are_not_told(
    all_of_it: Suite, anna: httpx.AsyncClient
) -> None:
    """GW13"""
    async with customer(all_of_it.home, all_of_it.gateways[0]) as bert, page(anna) as stream:
        await create(bert, "c")
        await order(bert)
        await ask(bert)
        mine = await order(anna)
        told = await stream.until(lambda event: states(event)[0] == mine)

    assert {states(event)[0] for event in told} == {mine}


async def test_nothing_is_lost_between_two_connections(
    all_of_it: Suite, anna: httpx.AsyncClient, work: WorkStore
) -> None:
    """GW14"""
    jobs = [await order(anna) for _ in range(2)]
    task_id = await ask(anna)
    waiting = {*jobs, task_id}
    async with page(anna) as first:

        def all_known(event: Event) -> bool:
            waiting.discard(states(event)[0])
            return not waiting

        last_id = (await first.until(all_known))[-1].last_id
    hand = all_of_it.hand
    first_attempt, _ = await hand.claim(2)
    await hand.fail(first_attempt)
    await all_of_it.home.ends.of(first_attempt.job_id)
    await work.succeed(await claimed(work))

    news = {(jobs[0], "failed"), (jobs[1], "running"), (task_id, "succeeded")}
    told: set[tuple[str, str]] = set()
    async with (
        all_of_it.other_window() as second_gateway,
        page(second_gateway, last_id=last_id) as second,
    ):

        def all_told(event: Event) -> bool:
            told.add(states(event))
            return told >= news

        await second.until(all_told)

    assert told == news


async def test_what_was_told_before_the_place_is_not_told_again(
    all_of_it: Suite, anna: httpx.AsyncClient, work: WorkStore
) -> None:
    """GW14"""
    async with page(anna) as first:
        over = await ask(anna)
        await work.succeed(await claimed(work))
        told = await first.state(over, "succeeded")
        await first.moved(told.last_id)
        last_id = first.last_id
    live = await ask(anna)

    async with page(anna, last_id=told.last_id) as repeated:
        await repeated.state(over, "succeeded")
    async with page(anna, last_id=last_id) as second:
        heard = await second.until(lambda event: states(event)[0] == live)

    assert {states(event)[0] for event in heard} == {live}


async def test_nothing_is_lost_while_generation_is_replaced(home: House) -> None:
    """GW14"""
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        settings = generation_settings(home.database_url, home.canvas_address)
        port = await first.enter_async_context(generation_server.serving(settings))
        made = await stack.enter_async_context(suite(home, f"127.0.0.1:{port}"))
        async with page(made.anna) as stream:
            job_id = await order(made.anna)
            await stream.state(job_id, "queued")
            await first.aclose()
            hand = home.hand()
            await hand.fail(*await hand.claim())
            again = generation_settings(
                home.database_url, home.canvas_address, listen=f"127.0.0.1:{port}"
            )
            await stack.enter_async_context(generation_server.serving(again))

            assert (await stream.state(job_id, "failed")).data["refundLedgerId"]


async def test_texts_come_along_and_resume_without_gap_or_repeat(
    all_of_it: Suite, anna: httpx.AsyncClient, work: WorkStore
) -> None:
    """GW15"""
    whole, going = await ask(anna), await ask(anna)
    first_claim, second_claim = await claimed(work, "a"), await claimed(work, "b")
    assert (first_claim.task_id, second_claim.task_id) == (whole, going)
    await work.append(first_claim, 0, ["void", "One."])
    await work.append(second_claim, 0, ["a", "b"])
    await work.succeed(first_claim)
    texts = (f"{whole}@1", f"{going}@0")
    told: list[Event] = []
    async with page(anna, *texts) as stream:
        while not {"text-terminal"} <= {event.name for event in told} or not any(
            event.data.get("content") == "b" for event in told
        ):
            told += await stream.until(lambda event: event.name.startswith("text"))
        last_id = told[-1].last_id
    await work.hand_back(second_claim)
    third_claim = await claimed(work, "c")
    await work.append(third_claim, third_claim.last_sequence, ["c"])
    await work.succeed(third_claim)

    async with page(anna, *texts, last_id=last_id) as stream:
        again = await stream.until(lambda event: event.name == "text-terminal")

    def of(task_id: str, events: list[Event]) -> list[tuple[str, Any]]:
        return [
            (event.name, event.data.get("content") or event.data.get("finalText"))
            for event in events
            if event.name.startswith("text") and event.data["taskId"] == task_id
        ]

    assert of(whole, told) == [("text", "One."), ("text-terminal", "void" + "One.")]
    assert of(going, told) == [("text", "a"), ("text", "b")]
    assert of(whole, again) == []
    assert of(going, again) == [("text-reset", None), ("text", "c"), ("text-terminal", "c")]


async def test_a_text_that_is_not_theirs_is_said_and_the_rest_goes_on(
    all_of_it: Suite, anna: httpx.AsyncClient
) -> None:
    """GW15"""
    async with browser(all_of_it.gateways[0]) as bert:
        foreign = await ask(bert, None)
    async with page(anna, f"{foreign}@0") as stream:
        (error,) = await stream.until(lambda event: event.name == "text-error")
        mine = await ask(anna)
        await stream.state(mine, "queued")

    assert error.data == {"taskId": foreign, "reason": "not_found"}


async def test_texts_wait_for_tasks_to_come_back(home: House, work: WorkStore) -> None:
    """GW15"""
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        port = await first.enter_async_context(
            tasks_server.serving(tasks_settings(home.database_url))
        )
        addresses = {"tasks": f"127.0.0.1:{port}"}
        settings = gateway_settings(home.database_url, home.objects_url, addresses)
        address = await stack.enter_async_context(gateway(settings))
        client = await stack.enter_async_context(browser(address))
        task_id = await ask(client)
        await first.aclose()
        stream = await stack.enter_async_context(page(client, f"{task_id}@0"))
        claim = await claimed(work)
        await work.append(claim, 0, ["One."])
        again = tasks_settings(home.database_url, listen=f"127.0.0.1:{port}")
        await stack.enter_async_context(tasks_server.serving(again))

        told = await stream.until(lambda event: event.name == "text")

    assert told[-1].data == {"taskId": task_id, "sequence": 1, "content": "One."}


async def test_silence_is_filled_with_comments(
    visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GW13"""
    monkeypatch.setattr(events_module, "HEARTBEAT_SECONDS", 0.02)
    async with page(visitor) as stream, asyncio.timeout(10):
        async for line in stream._lines:
            if line == ": heartbeat":
                break


async def test_asking_for_the_head_alone_ends(visitor: httpx.AsyncClient) -> None:
    """GW13"""
    head = await visitor.head("/api/events")
    after = await visitor.get("/api/me")

    assert (head.status_code, after.status_code) == (200, 200)
    assert head.headers["content-type"].startswith("text/event-stream")


async def test_who_signs_out_hears_no_more(visitor: httpx.AsyncClient) -> None:
    """GW16"""
    async with page(visitor) as stream:
        assert (await visitor.post("/api/auth/logout")).status_code == 204
        rest = await stream.rest()
    after = await visitor.get("/api/events")

    assert "retry: 1000" not in rest
    assert after.status_code == 401


async def test_a_gateway_that_goes_away_hints_to_come_back(database: str, objects_url: str) -> None:
    """GW16"""
    async with AsyncExitStack() as stack:
        leaving = AsyncExitStack()
        settings = gateway_settings(database, objects_url, {}, drain_seconds=10)
        address = await leaving.enter_async_context(gateway(settings))
        client = await stack.enter_async_context(browser(address))
        stream = await stack.enter_async_context(page(client))

        await leaving.aclose()

        assert "retry: 1000" in await stream.rest()


@pytest.mark.parametrize("last_id", ["x", "1", "1.2.3", ".~tk_a", "1.2~tk_a@-1", f"{'9' * 19}."])
async def test_an_id_that_is_not_of_this_stream_is_refused(
    visitor: httpx.AsyncClient, last_id: str
) -> None:
    """GW14"""
    answer = await visitor.get("/api/events", headers={"Last-Event-ID": last_id})

    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_cursor")


@pytest.mark.parametrize("texts", [["tk_a"], ["tk_a@x"], ["tk_a@-1"], ["@1"], ["tk_a@1"] * 9])
async def test_texts_are_named_with_their_place(
    visitor: httpx.AsyncClient, texts: list[str]
) -> None:
    """GW15"""
    answer = await visitor.get("/api/events", params={"text": texts})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"].startswith("text")


def test_a_place_is_read_as_it_is_written() -> None:
    """GW14"""
    place = Place("12", "34", {"tk_a": 5, "tk_b": None, "tk_c": 0})

    assert place_from_header(str(place)) == place


class Reading:
    """A reader that the test tells of jobs."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def reader(self, _account_id: str, *, tell: Any, reach: Any) -> Any:
        self.tell, self.reach = tell, reach
        return self

    def close(self) -> None:
        pass

    def begin(self, since: str) -> None:
        self.begun.append(since)

    def change(self, *numbers: int) -> None:
        for number in numbers:
            self.tell(News(pb.JobSummary(job_id=f"j{number}", status=pb.JOB_STATUS_PENDING)))


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.fixture
def outbox(reading: Reading) -> Iterator[Outbox]:
    made = Outbox(Place())
    watching: Any = reading
    with made.followed(watching, "us_a", "job", JOB, "en"):
        yield made


async def test_a_place_comes_before_the_first_states_and_after_the_later_ones(
    outbox: Outbox, reading: Reading
) -> None:
    """GW14"""
    reading.change(1)
    none = await outbox.taken(within_seconds=0.01)
    reading.reach("5")
    first = (await outbox.taken(within_seconds=5)).split(b"\n\n")
    reading.change(2)
    reading.reach("6")
    second = (await outbox.taken(within_seconds=5)).split(b"\n\n")

    assert none == b""
    assert first[0] == b"id: 5."
    assert first[1].startswith(b"id: 5.\nevent: job")
    assert second[0].startswith(b"id: 5.\nevent: job")
    assert second[1] == b"id: 6."


async def test_a_slow_reader_gets_the_newest_states_or_begins_anew(
    outbox: Outbox, reading: Reading
) -> None:
    """GW14"""
    reading.reach("5")
    await outbox.taken(within_seconds=5)
    for _ in range(3):
        reading.change(1, 2)
    little = await outbox.taken(within_seconds=5)
    reading.change(*range(MAX_STATES + 1))
    reading.reach("9")
    much = await outbox.taken(within_seconds=0.05)

    assert little.count(b"event: job") == 2
    assert much == b""
    assert reading.begun == ["", "5"]


async def test_text_that_is_not_read_stays_where_it_is(outbox: Outbox, reading: Reading) -> None:
    """GW15"""
    error = TextError("tk_a", "internal")
    for _ in range(MAX_TEXT_EVENTS):
        await outbox.put_text("tk_a", error)
    more = asyncio.create_task(outbox.put_text("tk_a", error))
    await asyncio.sleep(0)
    waits = not more.done()
    taken = await outbox.taken(within_seconds=5)
    await more

    assert waits
    assert taken.count(b"event: text-error") == MAX_TEXT_EVENTS


async def test_who_leaves_leaves_nothing_behind(anna: httpx.AsyncClient) -> None:
    """GW16"""
    task_id = await ask(anna)
    # Gateways of other tests that are gone, or still have windows.
    gc.collect()
    before = readers()
    async with page(anna, f"{task_id}@0") as stream:
        await stream.state(task_id, "queued")
        during = readers()

    async with asyncio.timeout(10):
        while readers() != before:
            await asyncio.sleep(0.05)
    assert during == before + 2


def readers() -> int:
    """How many readers the gateways of this process have."""
    return sum(len(each._readers) for each in gc.get_objects() if isinstance(each, Watching))
