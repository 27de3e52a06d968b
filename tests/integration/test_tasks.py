"""The tasks service over gRPC with real workers on real PostgreSQL."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from gesso.tasks.v1 import tasks_pb2 as pb

from providers.text import ModelRefused, ModelUnavailable
from servicekit.client import Client
from servicekit.errors import Conflict, Invalid, NotFound, TooMany, Unavailable
from services.tasks import server
from services.tasks.domain.failures import LeaseLost
from services.tasks.domain.tasks import FAULT
from services.tasks.domain.terms import Terms
from services.tasks.feed import TextFeed
from services.tasks.models import text_models
from services.tasks.store import TasksStore
from services.tasks.work_store import Claim, WorkStore
from tests.support.services import connected
from tests.support.tasks import (
    Desk,
    Pen,
    sequence_of,
    tasks_service,
    tasks_settings,
    text_of,
    work_store,
    worker,
    worker_settings,
)

# A lease that has expired when it begins: its worker is lost from the start.
LOST = Terms(lease=timedelta(0), running_per_account=5, attempts=3)
HELD = Terms(lease=timedelta(seconds=60), running_per_account=5, attempts=3)
# How often a worker looks for expired leases in these tests.
SOON = 0.05


@pytest.fixture
async def tasks(database: str) -> AsyncIterator[Client]:
    """A client of a tasks service that has a database for itself, and no worker yet."""
    async with tasks_service(tasks_settings(database)) as client:
        yield client


@pytest.fixture
def desk(tasks: Client) -> Desk:
    """An account of that service."""
    return Desk(tasks)


@pytest.fixture
async def work(database: str) -> AsyncIterator[WorkStore]:
    """What a worker writes through."""
    async with work_store(database) as store:
        yield store


async def claimed(work: WorkStore, owner: str, terms: Terms = HELD) -> Claim:
    claim = await work.claim(owner, terms)
    assert claim is not None
    return claim


async def rows(database: str, statement: str, *arguments: object) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(database)
    try:
        return [dict(row) for row in await connection.fetch(statement, *arguments)]
    finally:
        await connection.close()


async def stored(database: str) -> dict[str, list[dict[str, Any]]]:
    """Everything that the service keeps."""
    tables = ("account", "task", "prompt", "result", "log", "text_event")
    return {
        table: await rows(database, f"SELECT * FROM tasks.{table} ORDER BY 1, 2")
        for table in tables
    }


async def check_numbers(database: str) -> None:
    """The numbers of each account are those of its tasks."""
    wrong = await rows(
        database,
        "SELECT * FROM tasks.account JOIN LATERAL ("
        "  SELECT count(*) FILTER (WHERE status = 'queued')  AS queued,"
        "         count(*) FILTER (WHERE status = 'running') AS owned"
        "    FROM tasks.task WHERE task.account_id = account.account_id) AS real ON true"
        " WHERE (waiting, running) IS DISTINCT FROM (queued, owned)",
    )
    assert wrong == []


async def delta(events: AsyncIterator[pb.WatchTextEventsResponse]) -> pb.TextDelta:
    async for event in events:
        if event.WhichOneof("event") == "delta":
            return event.delta
    raise AssertionError("the stream ended")


# What is asked


async def test_the_same_request_eight_times_at_once_makes_one_task(
    desk: Desk, database: str
) -> None:
    """TK1"""
    answers = await asyncio.gather(*(desk.order(request_id="once") for _ in range(8)))

    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7
    assert len({answer.task.task_id for answer in answers}) == 1
    assert await rows(database, "SELECT waiting FROM tasks.account") == [{"waiting": 1}]


async def test_a_repeat_answers_the_task_as_it_is_now(desk: Desk, database: str) -> None:
    """TK1"""
    pen = Pen()
    async with worker(worker_settings(database), pen.models()):
        first = await desk.order(request_id="once")
        pen.put("Done.")
        pen.end()
        await desk.watched(first.task.task_id)

        again = await desk.order(request_id="once")

    assert again.replayed
    assert first.task.status == pb.TASK_STATUS_QUEUED
    assert again.task.status == pb.TASK_STATUS_SUCCEEDED
    assert again.task.final_text == "Done."


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "another"},
        {"model": "studio-text"},
        {"canvas_id": "c"},
        {"node_id": "n"},
        {"client_operation_id": "o"},
    ],
)
async def test_another_request_under_the_same_id_is_refused(
    desk: Desk, other: dict[str, str]
) -> None:
    """TK1"""
    await desk.order(request_id="same", prompt="one")

    with pytest.raises(Conflict) as caught:
        await desk.order(**{"request_id": "same", "prompt": "one", **other})

    assert caught.value.machine_word == "idempotency_key_reused"


async def test_two_accounts_may_use_the_same_request_id(tasks: Client) -> None:
    """TK1"""
    answers = [await Desk(tasks).order(request_id="same") for _ in range(2)]

    assert [answer.replayed for answer in answers] == [False, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "image"},
        {"type": ""},
        {"prompt": ""},
        {"prompt": "灯" * 21_846},
        {"prompt": "a\0b"},
        {"model": "no-such-model"},
        {"request_id": ""},
        {"request_id": "r" * 201},
        {"canvas_id": ""},
        {"node_id": "n" * 201},
        {"client_operation_id": ""},
    ],
)
async def test_what_cannot_be_a_task_is_refused_and_nothing_is_stored(
    desk: Desk, database: str, fields: dict[str, str]
) -> None:
    """TK2"""
    with pytest.raises(Invalid):
        await desk.order(**fields)

    assert all(table == [] for table in (await stored(database)).values())


async def test_a_backlog_is_never_longer_than_its_limit(database: str) -> None:
    """TK3"""
    async with tasks_service(tasks_settings(database, waiting_per_account=5)) as client:
        desk, other = Desk(client), Desk(client)

        answers = await asyncio.gather(*(desk.order() for _ in range(12)), return_exceptions=True)
        made = [answer for answer in answers if isinstance(answer, pb.CreateTaskResponse)]
        refused = [answer for answer in answers if isinstance(answer, TooMany)]
        again = await desk.order(request_id=f"r{answers.index(made[0]) + 1}")
        await other.order()

    assert (len(made), len(refused)) == (5, 7)
    assert {failure.machine_word for failure in refused} == {"backlog_full"}
    assert refused[0].facts == {"limit": 5}
    assert again.replayed
    await check_numbers(database)


# Its way


async def test_a_text_is_written_and_read_as_it_comes(desk: Desk, database: str) -> None:
    """TK4"""
    pen = Pen()
    task_id = await desk.create("a lantern", canvas_id="c", node_id="n")
    waiting = await desk.read(task_id)
    async with worker(worker_settings(database), pen.models()), desk.watching(task_id) as events:
        alive = await anext(events)
        prompt = await pen.asked.get()
        calling = await desk.read(task_id)
        pen.put("A lantern")
        first = await delta(events)
        pen.put(" over", " the river.")
        pen.end()
        rest = [event async for event in events]

    detail = await desk.detail(task_id)
    done = detail.task
    assert alive.WhichOneof("event") == "alive"
    assert prompt == "a lantern"
    assert (first.sequence, first.content) == (1, "A lantern")
    assert first.content + text_of(rest) == "A lantern over the river."
    assert rest[-1].terminal.status == pb.TASK_STATUS_SUCCEEDED
    assert rest[-1].terminal.final_text == done.final_text == "A lantern over the river."
    assert [(task.status, task.progress) for task in (waiting, calling, done)] == [
        (pb.TASK_STATUS_QUEUED, 5),
        (pb.TASK_STATUS_RUNNING, 35),
        (pb.TASK_STATUS_SUCCEEDED, 100),
    ]
    assert [(line.level, line.code) for line in detail.logs] == [
        ("info", "created"),
        ("info", "claimed"),
        ("info", "calling_model"),
        ("info", "succeeded"),
    ]
    assert (done.canvas_id, done.node_id, done.attempts) == ("c", "n", 1)
    assert done.create_time.ToNanoseconds() <= done.start_time.ToNanoseconds()
    assert done.start_time.ToNanoseconds() <= done.end_time.ToNanoseconds()
    await check_numbers(database)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ModelRefused("The model will not."), "model_refused"),
        (ModelUnavailable("The model is away."), "model_unavailable"),
    ],
)
async def test_a_model_that_fails_fails_the_task_and_its_text_is_kept(
    desk: Desk, database: str, failure: Exception, code: str
) -> None:
    """TK13"""
    pen = Pen()
    pen.put("So far")
    pen.end(failure)
    async with worker(worker_settings(database), pen.models()):
        task_id = await desk.create()
        events = await desk.watched(task_id)

    detail = await desk.detail(task_id)
    assert events[-1].terminal.status == pb.TASK_STATUS_FAILED
    assert events[-1].terminal.text_draft == detail.task.text_draft == "So far"
    assert not events[-1].terminal.HasField("final_text")
    assert detail.task.error == str(failure)
    assert detail.logs[-1].code == code
    await check_numbers(database)


async def test_a_model_that_does_not_end_is_stopped(desk: Desk, database: str) -> None:
    """TK13"""
    pen = Pen()
    pen.put("So far")
    async with worker(worker_settings(database, timeout_seconds=0.1), pen.models()):
        task_id = await desk.create()
        await desk.watched(task_id)

    detail = await desk.detail(task_id)
    assert detail.task.error == "The model did not end within 0.1 seconds."
    assert detail.task.text_draft == "So far"
    assert detail.logs[-1].code == "timed_out"
    assert pen.open == 0


async def test_a_fault_ends_its_task_and_no_other(desk: Desk, database: str) -> None:
    """TK13"""
    pen = Pen()
    async with worker(worker_settings(database, concurrency=1), pen.models()):
        broken, fine = await desk.create(), await desk.create()
        pen.end(ZeroDivisionError("a fault of the model's code"))
        await desk.watched(broken)
        pen.put("Fine.")
        pen.end()
        await desk.watched(fine)

    assert (await desk.read(broken)).error == FAULT.message
    assert (await desk.read(fine)).final_text == "Fine."


async def test_a_model_that_no_worker_knows_fails_the_task(desk: Desk, database: str) -> None:
    """TK13"""
    async with worker(worker_settings(database), {}):
        task_id = await desk.create()
        await desk.watched(task_id)

    assert (await desk.detail(task_id)).logs[-1].code == "unknown_model"


async def test_the_built_in_model_writes_without_a_network(desk: Desk, database: str) -> None:
    """TK4"""
    async with worker(worker_settings(database), text_models()):
        ids = [await desk.create(f"{prompt} !rate=5000") for prompt in ("a river", "一盏灯笼")]
        texts = [text_of(await desk.watched(task_id)) for task_id in ids]

    assert "a river" in texts[0]
    assert "一盏灯笼" in texts[1]


# Taking turns


async def test_an_account_runs_so_many_tasks_and_the_others_wait(
    tasks: Client, database: str
) -> None:
    """TK5"""
    pen = Pen()
    settings = worker_settings(database, running_per_account=2, concurrency=3)
    busy, other = Desk(tasks), Desk(tasks)
    for number in range(4):
        await busy.create(f"busy {number}")
    async with worker(settings, pen.models()), worker(settings, pen.models()):
        first = {await pen.asked.get(), await pen.asked.get()}
        await other.create("other")
        second = await pen.asked.get()
        running = await rows(
            database, "SELECT waiting, running FROM tasks.account ORDER BY running DESC"
        )
        pen.end()
        pen.end()
        pen.end()
        third = {await pen.asked.get(), await pen.asked.get()}
        pen.end()
        pen.end()

    assert first == {"busy 0", "busy 1"}
    assert second == "other"
    assert running == [{"waiting": 2, "running": 2}, {"waiting": 0, "running": 1}]
    assert third == {"busy 2", "busy 3"}
    await check_numbers(database)


async def test_accounts_take_turns_and_their_oldest_task_goes_first(
    tasks: Client, work: WorkStore
) -> None:
    """TK5"""
    many, few = Desk(tasks), Desk(tasks)
    for number in range(3):
        await many.create(f"many {number}")
    await few.create("few 0")

    claims = [await claimed(work, f"w{number}") for number in range(4)]

    assert [claim.prompt for claim in claims] == ["many 0", "few 0", "many 1", "many 2"]
    assert await work.claim("w4", HELD) is None


async def test_many_workers_at_once_run_every_task_once_within_the_limit(
    tasks: Client, work: WorkStore, database: str
) -> None:
    """TK5"""
    desks = [Desk(tasks) for _ in range(3)]
    await asyncio.gather(*(desk.create() for desk in desks for _ in range(8)))
    terms = Terms(lease=timedelta(seconds=60), running_per_account=4, attempts=3)

    async def claims(name: str) -> list[Claim]:
        found: list[Claim] = []
        while claim := await work.claim(f"{name}-{len(found)}", terms):
            found.append(claim)
        return found

    taken = [claim for found in await asyncio.gather(*map(claims, "abcdef")) for claim in found]
    # What a claim passed over because somebody held its account is taken when one looks again.
    taken += await claims("g")

    assert len({claim.key for claim in taken}) == len(taken) == 12
    await check_numbers(database)
    await asyncio.gather(*(work.succeed(claim) for claim in taken))
    await check_numbers(database)


# Leases


async def test_a_lost_worker_is_replaced_and_the_text_starts_anew(
    desk: Desk, work: WorkStore, database: str
) -> None:
    """TK7"""
    task_id = await desk.create()
    lost = await claimed(work, "lost", HELD)
    await work.append(lost, 0, ["One ", "two "])
    async with desk.watching(task_id) as events:
        seen = [(await delta(events)).sequence for _ in range(2)]
        await rows(database, "UPDATE tasks.task SET lease_until = now()")

        pen = Pen()
        async with worker(worker_settings(database, poll_seconds=SOON), pen.models()):
            pen.put("Anew.")
            pen.end()
            rest = [event async for event in events]

    detail = await desk.detail(task_id)
    assert seen == [1, 2]
    assert [sequence_of(event) for event in rest] == [3, 4, None]
    assert rest[0].reset.attempt == 2
    assert text_of(rest) == detail.task.final_text == "Anew."
    assert detail.task.attempts == 2
    assert ("warn", "taken_over") in [(line.level, line.code) for line in detail.logs]
    await check_numbers(database)


async def test_a_task_that_is_lost_three_times_fails_with_its_draft(
    desk: Desk, work: WorkStore, database: str
) -> None:
    """TK7"""
    task_id = await desk.create()
    for number in range(3):
        claim = await claimed(work, f"lost {number}", HELD)
        await work.append(claim, claim.last_sequence, [f"Draft {number}."])
        await rows(database, "UPDATE tasks.task SET lease_until = now()")
    assert await work.claim("another", HELD) is None

    async with worker(worker_settings(database), {}):
        events = await desk.watched(task_id)

    detail = await desk.detail(task_id)
    assert [sequence_of(event) for event in events] == [1, 2, 3, 4, 5, None]
    assert [event.reset.attempt for event in events if event.HasField("reset")] == [2, 3]
    assert detail.task.status == pb.TASK_STATUS_FAILED
    assert detail.task.text_draft == "Draft 2."
    assert detail.task.attempts == 3
    assert detail.logs[-1].code == "workers_lost"
    await check_numbers(database)


async def test_a_stale_worker_changes_nothing(desk: Desk, work: WorkStore, database: str) -> None:
    """TK6"""
    await desk.create()
    stale = await claimed(work, "stale", LOST)
    await claimed(work, "new", HELD)
    before = await stored(database)

    for write in (
        work.renew(stale, HELD.lease),
        work.call_model(stale),
        work.append(stale, 0, ["late"]),
        work.append(stale, 1, ["late"]),
        work.succeed(stale),
        work.fail(stale, FAULT),
        work.hand_back(stale),
    ):
        with pytest.raises(LeaseLost):
            await write

    assert await stored(database) == before


async def test_an_expired_lease_cannot_be_renewed_nor_written_with(
    desk: Desk, work: WorkStore, database: str
) -> None:
    """TK6"""
    await desk.create()
    expired = await claimed(work, "expired", LOST)
    before = await stored(database)

    for write in (
        work.renew(expired, HELD.lease),
        work.call_model(expired),
        work.append(expired, 0, ["late"]),
    ):
        with pytest.raises(LeaseLost):
            await write

    assert await stored(database) == before


async def test_a_task_stays_with_a_worker_that_renews(desk: Desk, database: str) -> None:
    """TK6"""
    pen = Pen()
    settings = worker_settings(
        database, lease_seconds=1.5, renew_seconds=0.2, poll_seconds=SOON, flush_seconds=0.5
    )
    async with worker(settings, pen.models()), worker(settings, pen.models()):
        task_id = await desk.create()
        async with desk.watching(task_id) as events:
            for number in range(5):  # each stored 0.5 s after the one before
                pen.put(f"{number} ")
                await delta(events)
            pen.end()
            assert [event async for event in events][-1].HasField("terminal")

    assert (await desk.read(task_id)).attempts == 1
    assert (await desk.read(task_id)).final_text == "0 1 2 3 4 "


async def test_a_worker_that_lost_its_lease_stops_the_model(
    desk: Desk, work: WorkStore, database: str
) -> None:
    """TK6"""
    pen = Pen()
    settings = worker_settings(database, renew_seconds=0.05)
    async with worker(settings, pen.models()):
        task_id = await desk.create()
        await pen.asked.get()
        await rows(database, "UPDATE tasks.task SET lease_until = now()")
        other = await claimed(work, "other")
        async with asyncio.timeout(5):
            while pen.open:
                await asyncio.sleep(0.01)
        await work.append(other, other.last_sequence, ["The other's."])
        await work.succeed(other)

    assert (await desk.read(task_id)).final_text == "The other's."


async def test_a_worker_that_stops_hands_its_tasks_back(desk: Desk, database: str) -> None:
    """TK8"""
    pen = Pen()
    task_id = await desk.create()
    stopping = worker_settings(database, drain_seconds=0)
    async with worker(stopping, pen.models()), desk.watching(task_id) as events:
        pen.put("Never ended")
        first = await delta(events)
    waiting = await desk.read(task_id)
    async with worker(worker_settings(database), pen.models()):
        pen.put("Anew.")
        pen.end()
        rest = await desk.watched(task_id, after=first.sequence)

    done = await desk.detail(task_id)
    assert (waiting.status, waiting.progress) == (pb.TASK_STATUS_QUEUED, 5)
    assert [sequence_of(event) for event in rest] == [2, 3, None]
    assert rest[0].reset.attempt == 2
    assert done.task.final_text == "Anew."
    assert "handed_back" in [line.code for line in done.logs]
    await check_numbers(database)


async def test_handing_back_does_not_count_as_an_attempt(
    desk: Desk, work: WorkStore, database: str
) -> None:
    """TK8"""
    await desk.create()
    for number in range(5):
        await work.hand_back(await claimed(work, f"stopping {number}"))

    lost = [await claimed(work, f"lost {number}", LOST) for number in range(3)]

    assert [claim.attempts_left for claim in lost] == [3, 2, 1]
    assert [claim.attempt for claim in lost] == [6, 7, 8]
    assert await work.claim("another", LOST) is None
    await check_numbers(database)


async def test_a_worker_that_stops_lets_its_tasks_end_within_the_grace_period(
    desk: Desk, database: str
) -> None:
    """TK8"""
    pen = Pen()
    async with worker(worker_settings(database), pen.models()) as made:
        task_id = await desk.create()
        await pen.asked.get()
        made.stop()
        unclaimed = await desk.create()
        pen.put("In time.")
        pen.end()

    assert (await desk.read(task_id)).final_text == "In time."
    assert (await desk.read(unclaimed)).attempts == 0


# The text


async def test_readers_cut_at_random_and_resumed_all_read_the_same(
    desk: Desk, database: str
) -> None:
    """TK9"""
    chance = random.Random(20_261_130)
    task_id = await desk.create("a long story !tokens=400 !rate=400")

    async def read_in_parts(seed: int) -> tuple[list[int | None], str]:
        cut = random.Random(seed)
        events: list[pb.WatchTextEventsResponse] = []
        while not (events and events[-1].HasField("terminal")):
            last = max((sequence_of(event) or 0 for event in events), default=0)
            parts = cut.randint(1, 12)
            async with desk.watching(task_id, after=last) as stream:
                async for event in stream:
                    if not event.HasField("alive"):
                        events.append(event)
                        parts -= 1
                    if parts == 0:
                        break
        return [sequence_of(event) for event in events], text_of(events)

    async with worker(worker_settings(database), text_models()):
        readings = await asyncio.gather(
            *(read_in_parts(chance.randrange(1_000_000)) for _ in range(20))
        )

    final = (await desk.read(task_id)).final_text
    assert {text for _, text in readings} == {final}
    for numbers, _ in readings:
        assert numbers == [*range(1, len(numbers)), None]


async def test_a_reader_that_comes_after_the_end_reads_all_of_it(desk: Desk, database: str) -> None:
    """TK9"""
    async with worker(worker_settings(database), text_models()):
        task_id = await desk.create("a story !tokens=50 !rate=1000")
        during = await desk.watched(task_id)

    after = await desk.watched(task_id)
    half = await desk.watched(task_id, after=2)
    beyond = await desk.watched(task_id, after=10**12)

    assert after == during
    assert half == during[2:]
    assert beyond == during[-1:]


async def test_an_append_that_is_repeated_adds_its_text_once(desk: Desk, work: WorkStore) -> None:
    """TK9"""
    task_id = await desk.create()
    claim = await claimed(work, "w")

    places = [await work.append(claim, 0, ["one", "two"]) for _ in range(3)]
    await work.append(claim, 2, ["three"])
    await work.succeed(claim)

    assert places == [2, 2, 2]
    assert text_of(await desk.watched(task_id)) == "onetwothree"


async def test_a_database_that_goes_away_in_the_middle_costs_no_text(
    desk: Desk, database: str
) -> None:
    """TK9"""
    pen = Pen()
    async with worker(worker_settings(database), pen.models()):
        task_id = await desk.create()
        async with desk.watching(task_id) as events:
            pen.put("Before, ")
            await delta(events)
        await rows(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        pen.put("after.")
        pen.end()
        async with asyncio.timeout(10):
            events_again = await until_ended(desk, task_id)

    assert text_of(events_again) == "Before, after."
    assert (await desk.read(task_id)).attempts == 1


async def until_ended(desk: Desk, task_id: str) -> list[pb.WatchTextEventsResponse]:
    """What a reader sees that resumes as often as it must."""
    events: list[pb.WatchTextEventsResponse] = []
    while True:
        last = max((sequence_of(event) or 0 for event in events), default=0)
        try:
            events += await desk.watched(task_id, after=last)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            return events


async def test_large_pieces_are_split_and_small_ones_are_gathered(
    desk: Desk, database: str
) -> None:
    """TK10"""
    pen = Pen()
    large = "灯" * 60_000
    async with worker(worker_settings(database, flush_seconds=0.1), pen.models()):
        task_id = await desk.create()
        pen.put("first ", *["."] * 500, large)
        pen.end()
        events = await desk.watched(task_id)

    sizes = [len(event.delta.content.encode()) for event in events if event.HasField("delta")]
    assert max(sizes) <= 64 * 1024
    assert len(sizes) <= 5
    assert text_of(events) == "first " + "." * 500 + large


async def test_a_text_over_its_limit_fails_the_task_and_keeps_what_fitted(
    desk: Desk, database: str
) -> None:
    """TK10"""
    pen = Pen()
    async with worker(worker_settings(database), pen.models()):
        task_id = await desk.create()
        pen.put(*["x" * 100_000] * 21)
        await desk.watched(task_id)

    detail = await desk.detail(task_id)
    assert detail.logs[-1].code == "text_too_long"
    assert detail.task.text_draft == "x" * 2_000_000
    assert pen.open == 0


async def test_what_a_database_cannot_hold_is_left_out(desk: Desk, database: str) -> None:
    """TK10"""
    pen = Pen()
    async with worker(worker_settings(database), pen.models()):
        task_id = await desk.create()
        pen.put("a\0b", "\ud83d", "\0", "c")
        pen.end()
        await desk.watched(task_id)

    assert (await desk.read(task_id)).final_text == "ab?c"


async def test_two_hundred_tokens_a_second_cost_few_writes(desk: Desk, database: str) -> None:
    """TK11"""
    async with worker(worker_settings(database, flush_seconds=0.05), text_models()):
        task_id = await desk.create("a story !tokens=200 !rate=200")
        events = await desk.watched(task_id)

    assert 5 <= len(events) - 1 <= 22


# Streams


async def test_a_silent_stream_says_that_it_is_there(database: str) -> None:
    """TK12"""
    async with tasks_service(tasks_settings(database, alive_seconds=0.02)) as client:
        desk = Desk(client)
        task_id = await desk.create()
        async with desk.watching(task_id) as events:
            kinds = [(await anext(events)).WhichOneof("event") for _ in range(4)]

    assert kinds == ["alive"] * 4


async def test_a_server_that_drains_lets_streams_go_on_elsewhere(desk: Desk, database: str) -> None:
    """TK12"""
    pen = Pen()
    async with worker(worker_settings(database), pen.models()), AsyncExitStack() as serving:
        port = await serving.enter_async_context(server.serving(tasks_settings(database)))
        async with connected(port) as client:
            leaving = Desk(client, desk.behalf)
            task_id = await leaving.create()
            async with leaving.watching(task_id) as events:
                pen.put("Before, ")
                first = await delta(events)
                await serving.aclose()
                with pytest.raises(Unavailable) as caught:
                    await anext(events)
        pen.put("after.")
        pen.end()
        rest = await desk.watched(task_id, after=first.sequence)

    assert "resume" in caught.value.detail
    assert first.content + text_of(rest) == "Before, after."


async def test_readers_that_go_away_leave_nothing_behind(
    desk: Desk, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TK12"""
    feeds: list[TextFeed] = []

    class KeptFeed(TextFeed):
        def __init__(self, store: TasksStore) -> None:
            super().__init__(store)
            feeds.append(self)

    monkeypatch.setattr(server, "TextFeed", KeptFeed)
    pen = Pen()
    async with (
        tasks_service(tasks_settings(database)) as client,
        worker(worker_settings(database), pen.models()),
    ):
        reader = Desk(client, desk.behalf)
        task_id = await reader.create()
        pen.put("One")
        for _ in range(30):
            async with reader.watching(task_id) as events:
                await delta(events)
        async with asyncio.timeout(5):
            while len(feeds[0]):
                await asyncio.sleep(0.01)
        pen.end()
        await reader.watched(task_id)

    assert (await desk.read(task_id)).final_text == "One"


async def test_however_many_read_a_text_it_is_read_once(
    desk: Desk, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TK12"""
    pen = Pen()
    reads = 0
    texts = TasksStore.texts

    async def counted(self: TasksStore, after: Any) -> Any:
        nonlocal reads
        reads += 1
        return await texts(self, after)

    async with worker(worker_settings(database), pen.models()):
        task_id = await desk.create()
        await pen.asked.get()
        async with asyncio.TaskGroup() as group:
            streams = [desk.watching(task_id) for _ in range(20)]
            opened = [await stream.__aenter__() for stream in streams]
            pen.put("a")
            await asyncio.gather(*map(delta, opened))
            monkeypatch.setattr(TasksStore, "texts", counted)
            for piece in "bcdef":
                pen.put(piece)
                got = await asyncio.gather(*map(delta, opened))
                assert {found.content for found in got} == {piece}
            pen.end()
            for stream in streams:
                group.create_task(stream.__aexit__(None, None, None))

    assert reads <= 7  # one for each piece, one or two for the end


async def test_text_that_came_while_the_listener_was_cut_is_found(
    desk: Desk, work: WorkStore, database: str
) -> None:
    """TK12"""
    task_id = await desk.create()
    claim = await claimed(work, "w")
    async with desk.watching(task_id) as events:
        await anext(events)
        await rows(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'gesso-listener' AND datname = current_database()",
        )
        await work.append(claim, 0, ["Unheard."])
        found = await delta(events)

    assert found.content == "Unheard."


async def test_text_that_nobody_told_of_is_found_by_looking(work: WorkStore, database: str) -> None:
    """TK12"""
    async with tasks_service(tasks_settings(database, poll_seconds=SOON)) as client:
        desk = Desk(client)
        task_id = await desk.create()
        claim = await claimed(work, "w")
        async with desk.watching(task_id) as events:
            await anext(events)
            await rows(
                database,
                "INSERT INTO tasks.text_event (task_key, sequence, attempt, content)"
                " VALUES ($1, 1, 1, 'Untold.')",
                claim.key,
            )
            found = await delta(events)

    assert found.content == "Untold."


async def test_a_negative_place_is_refused(desk: Desk) -> None:
    """TK12"""
    task_id = await desk.create()

    with pytest.raises(Invalid):
        await desk.watched(task_id, after=-1)


# Lists


async def test_a_list_turns_its_pages(desk: Desk) -> None:
    """TK14"""
    for number in range(5):
        await desk.create(f"{number}" + "灯" * 300)
    prompts: list[str] = []
    token = ""

    while True:
        page = await desk.page(page_size=2, page_token=token)
        prompts += [task.prompt for task in page.tasks]
        token = page.next_page_token
        if not token:
            break

    assert prompts == [f"{number}" + "灯" * 199 for number in (4, 3, 2, 1, 0)]


async def test_a_list_shows_what_was_chosen_and_no_texts(desk: Desk, work: WorkStore) -> None:
    """TK14"""
    await desk.create("a", canvas_id="c1", node_id="n1")
    await work.succeed(await claimed(work, "w"))
    for prompt, canvas_id, node_id in (("b", "c1", "n1"), ("c", "c1", "n2"), ("d", "c2", "n1")):
        await desk.create(prompt, canvas_id=canvas_id, node_id=node_id)
    await desk.create("e")

    async def prompts(**choice: Any) -> str:
        return "".join(task.prompt for task in (await desk.page(**choice)).tasks)

    assert await prompts() == "edcba"
    assert await prompts(canvas_id="c1") == "cba"
    assert await prompts(node_id="n1") == "dba"
    assert await prompts(canvas_id="c1", node_id="n1") == "ba"
    assert await prompts(canvas_id="c1", node_id="n1", active_only=True) == "b"
    assert await prompts(active_only=True) == "edcb"
    assert await prompts(canvas_id="c3") == ""
    assert not any(task.HasField("final_text") for task in (await desk.page()).tasks)


@pytest.mark.parametrize("fields", [{"page_token": "x"}, {"page_size": 201}, {"page_size": -1}])
async def test_a_page_that_is_not_one_is_refused(desk: Desk, fields: dict[str, Any]) -> None:
    """TK14"""
    with pytest.raises(Invalid):
        await desk.page(**fields)


async def test_someone_elses_task_is_none(tasks: Client) -> None:
    """TK15"""
    owner, stranger = Desk(tasks), Desk(tasks)
    task_id = await owner.create(canvas_id="c", node_id="n")

    with pytest.raises(NotFound):
        await stranger.read(task_id)
    with pytest.raises(NotFound):
        await stranger.watched(task_id)
    assert list((await stranger.page()).tasks) == []
    assert list((await stranger.page(canvas_id="c", node_id="n")).tasks) == []
    with pytest.raises(NotFound):
        await owner.read("tk_nothing")
