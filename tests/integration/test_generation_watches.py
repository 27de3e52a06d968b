"""Changes of jobs, told over one stream for many accounts."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
from gesso.generation.v1 import generation_pb2 as pb

from servicekit.errors import Invalid, Unavailable
from servicekit.watches import PAGE
from services.generation import server as generation_server
from tests.support.generation import (
    Hand,
    House,
    Person,
    generation_service,
    generation_settings,
    house,
)
from tests.support.services import connected
from tests.support.watching import Watcher, watching_jobs

END = """
UPDATE generation.summary
   SET status          = 'failed',
       phase           = NULL,
       error           = 'It broke.',
       refund_entry_id = 'le_1',
       ended_at        = now(),
       changed_in      = pg_current_xact_id(),
       ended_in        = pg_current_xact_id()
 WHERE job_id = $1
"""


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def person(home: House) -> Person:
    somebody = home.person()
    await somebody.grant(100)
    return somebody


@pytest.fixture
def hand(home: House) -> Hand:
    return home.hand()


@pytest.fixture
async def watcher(home: House, person: Person) -> AsyncIterator[Watcher]:
    """Somebody who watches the person, and has caught up."""
    async with watching_jobs(home.generation) as made:
        made.add(person.account_id)
        await made.caught_up()
        yield made


async def test_each_change_of_a_job_is_told(person: Person, hand: Hand, watcher: Watcher) -> None:
    """GN21 GN22"""
    done = (await person.enqueue(is_shown=False)).job.job_id
    await watcher.shown(done, status=pb.JOB_STATUS_PENDING)
    (attempt,) = await hand.claim()
    await watcher.shown(done, status=pb.JOB_STATUS_RUNNING, phase=pb.JOB_PHASE_GENERATING)
    await hand.update_phase(attempt, progress=40)
    await watcher.shown(done, phase=pb.JOB_PHASE_PROCESSING, progress=40)
    await hand.complete(attempt)
    told = await watcher.shown(done, status=pb.JOB_STATUS_COMPLETED, progress=100)

    assert told == await person.job(done)


async def test_each_way_to_fail_is_told(
    home: House, person: Person, hand: Hand, watcher: Watcher
) -> None:
    """GN21 GN22"""
    await person.enqueue()
    await person.enqueue()
    broken, late = await hand.claim(2)
    await hand.fail(broken)
    await home.expire(late.job_id)
    await hand.claim()

    failed = [
        await watcher.shown(job.job_id, status=pb.JOB_STATUS_FAILED) for job in (broken, late)
    ]

    assert failed == [await person.job(job.job_id) for job in (broken, late)]


async def test_what_is_not_watched_is_not_told(
    home: House, person: Person, watcher: Watcher
) -> None:
    """GN22"""
    other, former = home.person(), home.person()
    for somebody in (other, former):
        await somebody.grant(100)
    watcher.add(former.account_id, reader=2)
    await watcher.caught_up(2)
    watcher.remove(former.account_id)
    watcher.add(person.account_id, reader=3)
    await watcher.caught_up(3)
    await other.enqueue()
    await former.enqueue()
    job_id = (await person.enqueue()).job.job_id
    await watcher.shown(job_id)
    await watcher.moved()
    await watcher.moved()

    assert {account_id for account_id, _ in watcher.states} == {person.account_id}


async def test_a_change_at_one_instance_is_told_by_another(home: House, person: Person) -> None:
    """GN22"""
    settings = generation_settings(home.database_url, home.canvas_address, poll_seconds=60)
    async with generation_service(settings) as other, watching_jobs(other) as watcher:
        watcher.add(person.account_id)
        await watcher.caught_up()

        job_id = (await person.enqueue()).job.job_id

        await watcher.shown(job_id)


async def test_a_reader_is_told_what_is_not_over_and_what_ended_since_its_cursor(
    person: Person, hand: Hand, watcher: Watcher
) -> None:
    """GN23"""
    before, between, live = [(await person.enqueue(is_shown=False)).job.job_id for _ in range(3)]
    (first, second) = await hand.claim(2)
    assert (first.job_id, second.job_id) == (before, between)
    await hand.complete(first)
    watcher.add(person.account_id, reader=2)
    cursor = await watcher.caught_up(2)
    await hand.complete(second)

    watcher.add(person.account_id, reader=3, since=cursor)
    await watcher.caught_up(3)
    watcher.add(person.account_id, reader=4)
    await watcher.caught_up(4)

    told = {
        number: {item.job_id for reader, item in watcher.told if reader == number}
        for number in (3, 4)
    }
    assert told == {3: {between, live}, 4: {live}}


async def test_what_was_not_committed_at_a_cursor_is_told_after_it(
    home: House, person: Person, watcher: Watcher
) -> None:
    """GN23"""
    job_id = (await person.enqueue()).job.job_id
    connection = await asyncpg.connect(home.database_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(END, job_id)
        # Transactions that begin later and are over before.
        await person.grant(1)
        watcher.add(person.account_id, reader=2)
        cursor = await watcher.caught_up(2)
        moved = await watcher.moved()
        await transaction.commit()
    finally:
        await connection.close()

    for reader, since in ((3, cursor), (4, moved)):
        watcher.add(person.account_id, reader, since)
        await watcher.caught_up(reader)
        ((_, told),) = [each for each in watcher.told if each[0] == reader]
        assert (told.job_id, told.status) == (job_id, pb.JOB_STATUS_FAILED)


async def test_what_nobody_announced_is_found_and_moves_the_cursor(
    home: House, person: Person, watcher: Watcher
) -> None:
    """GN23"""
    job_id = (await person.enqueue()).job.job_id
    await watcher.shown(job_id)

    await home.execute(END, job_id)

    await watcher.shown(job_id, status=pb.JOB_STATUS_FAILED)
    cursor = await watcher.moved()
    watcher.add(person.account_id, reader=2, since=cursor)
    await watcher.caught_up(2)
    assert [item for reader, item in watcher.told if reader == 2] == []


async def test_more_than_a_page_is_told_whole(
    home: House, person: Person, watcher: Watcher
) -> None:
    """GN23"""
    count = 2 * PAGE + 1
    await home.execute(
        """
        INSERT INTO generation.summary
               (job_key, job_id, account_id, kind, source, label, status, price_micros, canvas_id,
                ended_at, ended_in)
        SELECT -number, 'old-' || number, $1, 'k', 's', 'l', 'completed', 1, 'c', now(),
               pg_current_xact_id()
          FROM generate_series(1, $2::integer) AS number
        """,
        person.account_id,
        count,
    )

    watcher.add(person.account_id, reader=2, since="3")
    await watcher.caught_up(2)

    assert len({item.job_id for reader, item in watcher.told if reader == 2}) == count


async def test_a_cut_connection_to_the_database_loses_nothing(
    home: House, person: Person, hand: Hand, watcher: Watcher
) -> None:
    """GN23"""
    job_id = (await person.enqueue(is_shown=False)).job.job_id
    (attempt,) = await hand.claim()
    await home.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'gesso-listener'"
        "   AND datname = current_database()"
    )

    await hand.complete(attempt)

    await watcher.shown(job_id, status=pb.JOB_STATUS_COMPLETED)


async def test_an_instance_that_goes_away_ends_its_streams(home: House, person: Person) -> None:
    """GN24"""
    async with AsyncExitStack() as stack:
        leaving = AsyncExitStack()
        settings = generation_settings(home.database_url, home.canvas_address)
        port = await leaving.enter_async_context(generation_server.serving(settings))
        client = await stack.enter_async_context(connected(port))
        watcher = await stack.enter_async_context(watching_jobs(client))
        watcher.add(person.account_id)
        await watcher.caught_up()

        await leaving.aclose()

        await watcher.until(lambda: watcher.failure is not None)
    assert isinstance(watcher.failure, Unavailable)
    assert watcher.failure.detail.startswith("The server is moving")


@pytest.mark.parametrize(
    ("account_id", "reader", "since"),
    [("us_a", 0, ""), ("", 1, ""), ("us_a", 1, "x"), ("us_a", 1, "-1"), ("us_a", 1, "9" * 19)],
)
async def test_what_cannot_be_watched_ends_the_stream(
    home: House, account_id: str, reader: int, since: str
) -> None:
    """GN24"""
    async with watching_jobs(home.generation) as watcher:
        watcher.add(account_id, reader, since)
        await watcher.until(lambda: watcher.failure is not None)

    assert isinstance(watcher.failure, Invalid)
