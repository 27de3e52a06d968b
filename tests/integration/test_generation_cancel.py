"""Jobs that are taken back, and ends that were seen, over gRPC on real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from gesso.generation.v1 import generation_pb2 as pb

from servicekit.errors import Conflict, FailedPrecondition, Invalid, NotFound
from tests.support.canvases import placeholder
from tests.support.generation import Hand, House, Person, house
from tests.support.media import register

CANCELLED = pb.LEASE_OUTCOME_CANCELLED


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test: a claim takes whatever waits."""
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def person(home: House) -> Person:
    """An account with a hundred credits and a canvas on which a node waits."""
    person = home.person()
    await person.grant(100)
    await register(home.database_url, person.account_id)
    await person.board().create(placeholder("n1"))
    return person


@pytest.fixture
def hand(home: House) -> Hand:
    """A worker."""
    return home.hand()


async def _refunds(person: Person) -> list[str]:
    entries = (await person.wallet()).entries
    return [entry.reference for entry in entries if entry.kind == "refund"]


async def _ended(home: House, person: Person, hand: Hand) -> str:
    job_id = (await person.enqueue(is_shown=False)).job.job_id
    await hand.complete(*await hand.claim())
    await home.ends.of(job_id)
    return job_id


async def test_a_job_that_waits_is_taken_back_at_once(
    home: House, person: Person, hand: Hand
) -> None:
    """GN25"""
    job_id = (await person.enqueue(node_id="n1")).job.job_id

    cancelled = await person.cancel(job_id)
    await home.delivered()

    (node,) = await person.board().nodes()
    assert cancelled.status == pb.JOB_STATUS_CANCELLED
    assert cancelled.HasField("end_time")
    assert (await _refunds(person), await person.balance()) == ([f"refund:{job_id}"], 100)
    assert (await person.wallet()).entries[0].entry_id == cancelled.refund_entry_id
    assert (node["metadata"]["status"], node["metadata"]["taskStatus"]) == ("idle", "cancelled")
    assert await hand.claim() == []


async def test_the_worker_of_a_job_that_was_taken_back_hears_of_it_and_ends_nothing(
    person: Person, hand: Hand
) -> None:
    """GN25"""
    job_id = (await person.enqueue(node_id="n1")).job.job_id
    other_id = (await person.enqueue(is_shown=False)).job.job_id
    job, other = await hand.claim(limit=2)

    await person.cancel(job_id)

    assert await hand.renew(job, other) == [CANCELLED, pb.LEASE_OUTCOME_OK]
    assert await hand.complete(job) == [pb.LEASE_OUTCOME_FENCED]
    assert await hand.fail(job) == [pb.LEASE_OUTCOME_FENCED]
    with pytest.raises(FailedPrecondition):
        await hand.update_phase(job)
    assert (await person.job(job_id)).status == pb.JOB_STATUS_CANCELLED
    assert (await person.job(other_id)).status == pb.JOB_STATUS_RUNNING
    assert await _refunds(person) == [f"refund:{job_id}"]


async def test_a_worker_that_lost_its_lease_before_is_fenced_not_told_of_the_cancelling(
    home: House, person: Person, hand: Hand
) -> None:
    """GN25"""
    job_id = (await person.enqueue(is_shown=False)).job.job_id
    await home.execute("UPDATE generation.job SET max_attempts = 2 WHERE job_id = $1", job_id)
    (lost,) = await hand.claim()
    await home.expire(job_id)
    (held,) = await hand.claim()

    await person.cancel(job_id)

    assert await hand.renew(lost, held) == [pb.LEASE_OUTCOME_FENCED, CANCELLED]


async def test_cancelling_eight_times_at_once_refunds_once(person: Person) -> None:
    """GN25"""
    job_id = (await person.enqueue(node_id="n1")).job.job_id

    answers = await asyncio.gather(*(person.cancel(job_id) for _ in range(8)))

    assert {job.status for job in answers} == {pb.JOB_STATUS_CANCELLED}
    assert len({job.refund_entry_id for job in answers}) == 1
    assert await person.balance() == 100


async def test_cancelling_and_completing_at_once_have_one_winner(
    home: House, person: Person
) -> None:
    """GN25"""
    hand = home.hand()
    for _ in range(10):
        job_id = (await person.enqueue(is_shown=False)).job.job_id
        (job,) = await hand.claim()

        cancelling, completing = await asyncio.gather(
            person.cancel(job_id), hand.complete(job), return_exceptions=True
        )

        shown = await person.job(job_id)
        is_cancelled = not isinstance(cancelling, BaseException)
        assert completing == [pb.LEASE_OUTCOME_FENCED if is_cancelled else pb.LEASE_OUTCOME_OK]
        assert (shown.status == pb.JOB_STATUS_CANCELLED) is is_cancelled
        assert shown.HasField("refund_entry_id") is is_cancelled
        if not is_cancelled:
            assert isinstance(cancelling, Conflict)


async def test_what_is_over_cannot_be_taken_back(home: House, person: Person, hand: Hand) -> None:
    """GN25"""
    job_id = await _ended(home, person, hand)

    with pytest.raises(Conflict) as refused:
        await person.cancel(job_id)

    assert refused.value.machine_word == "job_finishing"
    assert await person.balance() == 96


async def test_a_job_of_another_account_cannot_be_taken_back(home: House, person: Person) -> None:
    """GN25"""
    job_id = (await person.enqueue()).job.job_id

    with pytest.raises(NotFound):
        await home.person().cancel(job_id)

    assert (await person.job(job_id)).status == pb.JOB_STATUS_PENDING


async def test_a_placeholder_that_another_task_took_stays_as_it_is(
    home: House, person: Person
) -> None:
    """GN25"""
    job_id = (await person.enqueue(node_id="n1")).job.job_id
    await person.board().patch("n1", {"metadata.taskId": "tk_2"}, {"metadata.taskId": None})
    before = await person.board().nodes()

    await person.cancel(job_id)
    await home.delivered()

    assert await person.board().nodes() == before


async def test_ends_that_were_seen_are_listed_only_when_asked_for(
    home: House, person: Person, hand: Hand
) -> None:
    """GN26"""
    seen, unseen = await _ended(home, person, hand), await _ended(home, person, hand)
    waiting = (await person.enqueue()).job.job_id
    before = await person.overview()

    noted = await person.acknowledge(seen, waiting, "extgen-none")
    again = await person.acknowledge(seen)

    after = await person.overview()
    assert [job.job_id for job in noted] == [seen]
    assert noted[0].HasField("acknowledge_time")
    assert again == noted
    assert (before.unacknowledged, after.unacknowledged, after.pending) == (2, 1, 1)
    assert after.update_time == noted[0].update_time
    shown = (await person.jobs()).jobs
    completed = (await person.jobs(statuses=[pb.JOB_STATUS_COMPLETED])).jobs
    everything = (await person.jobs(include_acknowledged=True)).jobs
    assert [job.job_id for job in shown] == [waiting, unseen]
    assert [job.job_id for job in completed] == [unseen]
    assert [job.job_id for job in everything] == [waiting, unseen, seen]


async def test_ends_of_another_account_are_not_noted(
    home: House, person: Person, hand: Hand
) -> None:
    """GN26"""
    job_id = await _ended(home, person, hand)

    noted = await home.person().acknowledge(job_id)

    assert noted == []
    assert (await person.overview()).unacknowledged == 1


@pytest.mark.parametrize("count", [0, 101])
async def test_a_list_of_none_or_too_many_is_refused(person: Person, count: int) -> None:
    """GN26"""
    with pytest.raises(Invalid) as refused:
        await person.acknowledge(*("extgen-1" for _ in range(count)))

    assert refused.value.facts["path"] == "jobIds"
