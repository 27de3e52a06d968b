"""Whose job is next: turns of accounts, priorities, channels, and places in the queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from gesso.generation.v1 import generation_pb2 as pb

from servicekit import postgres
from servicekit.errors import Invalid
from servicekit.postgres import DatabaseSettings
from servicekit.settings import WrongSettings
from services.generation.store import Asked, Channel, QueueStore
from services.generation.turns_store import TurnsStore
from tests.support.generation import Hand, House, Person, generation_service, house
from tests.support.generation import generation_settings as settings_of


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test, with two turns an account."""
    async with house(database, objects_url, running_limit=2) as services:
        yield services


@pytest.fixture
def hand(home: House) -> Hand:
    """A worker."""
    return home.hand()


async def _person(home: House) -> Person:
    person = home.person()
    await person.grant(1000)
    return person


async def _enqueued(person: Person, count: int) -> list[str]:
    return [(await person.enqueue(is_shown=False)).job.job_id for _ in range(count)]


async def _pending(home: House, count: int) -> None:
    """Waits until so many jobs can be claimed."""
    query = "SELECT FROM generation.job WHERE status = 'pending'"
    async with asyncio.timeout(10):
        while len(await home.fetch(query)) != count:
            await asyncio.sleep(0)


async def test_an_account_has_at_most_its_turns_and_the_next_follows_an_end(
    home: House, hand: Hand
) -> None:
    """GN27"""
    person = await _person(home)
    job_ids = await _enqueued(person, 5)

    first = await hand.claim(limit=10)
    nothing = await hand.claim(limit=10)
    await hand.complete(first[0])
    second = await hand.claim(limit=10, wait=5)
    await hand.fail(first[1])
    third = await hand.claim(limit=10, wait=5)
    await person.cancel(second[0].job_id)
    fourth = await hand.claim(limit=10, wait=5)

    assert [job.job_id for job in first + second + third + fourth] == job_ids
    assert (len(first), nothing) == (2, [])


async def test_a_crowd_does_not_keep_another_account_waiting(home: House, hand: Hand) -> None:
    """GN27"""
    many, one = await _person(home), await _person(home)
    await _enqueued(many, 20)
    (late,) = await _enqueued(one, 1)

    claimed = await hand.claim(limit=10)

    assert [job.job_id for job in claimed][2:] == [late]


async def test_a_turn_of_a_process_that_died_is_found(home: House, hand: Hand) -> None:
    """GN27"""
    person = await _person(home)
    await _enqueued(person, 3)
    # As a process leaves it that dies right after it has stored what a worker said.
    await home.execute("UPDATE generation.job SET status = 'cancelled' WHERE status = 'pending'")

    assert len(await hand.claim(limit=10, wait=10)) == 1


async def test_an_end_and_an_order_at_once_never_leave_a_job_without_its_turn(
    home: House, hand: Hand
) -> None:
    """GN27"""
    person = await _person(home)
    await _enqueued(person, 2)
    for _ in range(15):
        running = await hand.claim(limit=2, wait=5)
        await asyncio.gather(hand.complete(*running), _enqueued(person, 2))
        await _pending(home, 2)


async def test_of_what_can_be_claimed_the_lower_priority_number_comes_first(
    home: House, hand: Hand
) -> None:
    """GN27"""
    people = [await _person(home) for _ in range(3)]
    ids = [
        (await person.enqueue(is_shown=False, priority=priority)).job.job_id
        for person, priority in zip(people, (0, 5, -5), strict=True)
    ]

    claimed = [(await hand.claim())[0].job_id for _ in ids]

    assert claimed == [ids[2], ids[0], ids[1]]


async def test_among_jobs_without_a_priority_the_oldest_comes_first_whatever_came_before(
    home: House, hand: Hand
) -> None:
    """GN27"""
    people = [await _person(home) for _ in range(4)]
    ids = [
        (await person.enqueue(is_shown=False, priority=priority)).job.job_id
        for person, priority in zip(people, (0, -10, -10, 0), strict=True)
    ]
    await home.execute(
        "UPDATE generation.job SET available_at = available_at - interval '10 minutes'"
        " WHERE job_id = $1",
        ids[0],
    )

    claimed = [(await hand.claim())[0].job_id for _ in ids]

    assert claimed == [ids[1], ids[2], ids[0], ids[3]]


async def test_an_account_that_somebody_holds_keeps_no_claim_waiting(
    home: House, hand: Hand
) -> None:
    """GN27"""
    held, other = await _person(home), await _person(home)
    (late,) = await _enqueued(held, 1)
    await hand.claim()
    await home.execute(
        "UPDATE generation.job SET lease_until = now() - interval '1 second' WHERE job_id = $1",
        late,
    )
    (ready,) = await _enqueued(other, 1)
    connection = await asyncpg.connect(home.database_url)
    try:
        async with connection.transaction(), asyncio.timeout(2):
            await connection.execute(
                "SELECT FROM generation.account WHERE account_id = $1 FOR UPDATE", held.account_id
            )
            claimed = await hand.claim(limit=5)
            still = await held.job(late)
    finally:
        await connection.close()
    nothing = await hand.claim(limit=5)

    assert [job.job_id for job in claimed] == [ready]
    assert still.status == pb.JOB_STATUS_RUNNING
    assert nothing == []
    assert (await held.job(late)).status == pb.JOB_STATUS_FAILED


async def test_a_priority_out_of_range_is_refused(home: House) -> None:
    """GN27"""
    person = await _person(home)

    with pytest.raises(Invalid) as refused:
        await person.enqueue(priority=101)

    assert refused.value.facts["errors"][0]["path"] == "priority"


async def test_a_channel_never_runs_more_than_its_limit_however_many_claim(
    database: str, objects_url: str
) -> None:
    """GN28"""
    limited: dict[str, Any] = {"running_limit": 10, "channel_limits": "studio=3"}
    async with (
        house(database, objects_url, **limited) as home,
        generation_service(settings_of(database, home.canvas_address, **limited)) as second,
    ):
        person = await _person(home)
        await _enqueued(person, 10)
        hands = [Hand(client, f"w{n}") for n in range(4) for client in (home.generation, second)]
        ended = 0
        async with asyncio.timeout(30):
            while ended < 10:
                claims = await asyncio.gather(*(hand.claim(limit=2, wait=1) for hand in hands))
                running = await home.fetch("SELECT FROM generation.job WHERE status = 'running'")
                got = sum(map(len, claims))
                assert got == len(running) == min(3, 10 - ended)
                ended += got
                await asyncio.gather(
                    *(
                        hand.complete(*jobs)
                        for hand, jobs in zip(hands, claims, strict=True)
                        if jobs
                    )
                )


async def test_a_channel_with_room_again_wakes_a_claim_that_waits(
    database: str, objects_url: str
) -> None:
    """GN28"""
    async with house(database, objects_url, channel_limits="studio=1", poll_seconds=30) as home:
        person, hand = await _person(home), home.hand()
        await _enqueued(person, 2)
        (first,) = await hand.claim(limit=2)
        waiting = asyncio.create_task(home.hand().claim(wait=20))
        await hand.complete(first)
        async with asyncio.timeout(10):
            assert len(await waiting) == 1


async def test_a_claim_passes_by_a_channel_that_another_claim_counts(database: str) -> None:
    """GN28"""
    async with postgres.connected(
        DatabaseSettings(database_url=database), application="turns"
    ) as pool:
        store = QueueStore(pool)
        lease = timedelta(minutes=1)
        limited = [Channel("studio", 1)]
        first = await store.claim([Asked("w", "1", 1, lease)], limited)
        async with _locked_channel(database):
            second = await store.claim([Asked("w", "2", 1, lease)], limited)

    assert (first.is_partial, second.is_partial) == (False, True)


@asynccontextmanager
async def _locked_channel(url: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM generation.channel FOR UPDATE")
            yield
    finally:
        await connection.close()


def test_a_channel_that_is_not_there_cannot_have_a_limit() -> None:
    """GN28"""
    settings = settings_of("postgresql://none", "localhost:1", channel_limits="stduio=4")

    with pytest.raises(WrongSettings) as refused:
        settings.capacities()

    assert "stduio" in refused.value.lines[0]


async def test_a_job_that_waits_tells_its_place_and_its_time(home: House, hand: Hand) -> None:
    """GN29"""
    other, person = await _person(home), await _person(home)
    await _enqueued(other, 1)
    job_ids = await _enqueued(person, 4)
    positions = {job.job_id: job.queue_position for job in (await person.jobs()).jobs}
    before = await person.job(job_ids[3])
    (job,) = await hand.claim()
    await hand.complete(job)
    await hand.claim()
    after = await person.job(job_ids[3])
    shown = (await person.jobs(statuses=[pb.JOB_STATUS_RUNNING])).jobs[0]

    # Two are pending with the other's before them; two wait for a turn after all three.
    assert [positions[job_id] for job_id in job_ids] == [2, 3, 4, 5]
    assert (before.queue_position, before.HasField("eta")) == (5, False)
    assert (after.queue_position, after.HasField("eta")) == (3, True)
    assert not shown.HasField("queue_position")


async def test_accounts_that_wait_are_listed_in_steps(home: House) -> None:
    """GN27"""
    people = sorted([await _person(home) for _ in range(3)], key=lambda person: person.account_id)
    for person in people:
        await home.execute(
            "INSERT INTO generation.job (job_id, account_id, dedupe_key, kind, canvas_id, delivers,"
            " max_attempts, price_micros, status) SELECT 'j' || n || $1, $1, n, 'k', 'c', false, 1,"
            " 1, 'waiting' FROM generate_series(1, 3) AS n",
            person.account_id,
        )
    ids = [person.account_id for person in people]
    async with postgres.connected(
        DatabaseSettings(database_url=home.database_url), application="turns"
    ) as pool:
        store = TurnsStore(pool)

        first = await store.next_waiting("", 2)
        rest = await store.next_waiting(first[-1], 2)

    assert (first, rest) == (ids[:2], ids[2:])
