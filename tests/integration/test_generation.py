"""The generation service over gRPC on real PostgreSQL, with a real canvas service."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gesso.generation.v1 import generation_pb2 as pb
from google.rpc.status_pb2 import Status

from servicekit.errors import Conflict, FailedPrecondition, Failure, Invalid, NotFound, TooMany
from servicekit.status import error_from_message
from tests.support.canvases import placeholder
from tests.support.generation import CREDIT, IMAGE_MICROS, Hand, House, Person, house
from tests.support.media import register

OK, FENCED = pb.LEASE_OUTCOME_OK, pb.LEASE_OUTCOME_FENCED


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test: a claim takes whatever waits."""
    async with house(database, objects_url, running_limit=50) as services:
        yield services


@pytest.fixture
async def person(home: House) -> Person:
    """An account with a hundred credits."""
    person = home.person()
    await person.grant(100)
    await register(home.database_url, person.account_id)
    return person


@pytest.fixture
def hand(home: House) -> Hand:
    """A worker."""
    return home.hand()


async def test_enqueueing_charges_and_stores_a_job(person: Person) -> None:
    """GN3"""
    response = await person.enqueue(prompt="  a paper\nlantern ", count=3, node_id="n1")

    job = response.job
    entry = (await person.wallet()).entries[0]
    assert (job.status, job.label) == (pb.JOB_STATUS_PENDING, "a paper lantern")
    assert (job.canvas_id, job.node_id, job.source) == ("cv_1", "n1", "editor-canvas")
    assert job.price_micros == 3 * IMAGE_MICROS
    assert (entry.kind, entry.delta_micros) == ("charge", -3 * IMAGE_MICROS)
    assert (entry.reference, entry.balance_after_micros) == (f"job:{job.job_id}", 88 * CREDIT)
    assert not response.replayed


async def test_the_same_request_eight_times_at_once_is_one_job_and_one_charge(
    person: Person,
) -> None:
    """GN2"""
    answers = await asyncio.gather(*(person.enqueue(key="once") for _ in range(8)))

    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7
    assert len({answer.job.job_id for answer in answers}) == 1
    assert await person.balance() == 96


async def test_another_request_under_the_same_key_is_refused(person: Person) -> None:
    """GN2"""
    await person.enqueue(key="same")

    with pytest.raises(Conflict) as caught:
        await person.enqueue(key="same", prompt="something else")

    assert caught.value.machine_word == "idempotency_key_reused"
    assert await person.balance() == 96


async def test_a_repeat_shows_the_job_as_it_is_now(person: Person, hand: Hand) -> None:
    """GN2"""
    await person.enqueue(key="once")
    await hand.claim()

    again = await person.enqueue(key="once", count=1, transparent=False)

    assert again.replayed
    assert again.job.status == pb.JOB_STATUS_RUNNING


async def test_without_the_money_nothing_is_stored(home: House) -> None:
    """GN3"""
    poor = home.person()
    await poor.grant(7)

    with pytest.raises(FailedPrecondition) as caught:
        await poor.enqueue(count=2)
    with pytest.raises(FailedPrecondition):
        await home.person().enqueue()

    assert caught.value.machine_word == "insufficient_balance"
    assert caught.value.facts == {"balance_micros": 7 * CREDIT, "price_micros": 8 * CREDIT}
    assert list((await poor.jobs()).jobs) == []
    assert await poor.balance() == 7


async def test_ten_at_once_never_spend_more_than_there_is(home: House) -> None:
    """GN3"""
    poor = home.person()
    await poor.grant(18)

    answers = await asyncio.gather(*(poor.enqueue() for _ in range(10)), return_exceptions=True)

    assert sum(isinstance(answer, pb.EnqueueResponse) for answer in answers) == 4
    assert await poor.balance() == 2


async def test_a_full_backlog_is_refused_until_something_is_claimed(
    database: str, objects_url: str
) -> None:
    """GN4"""
    async with house(database, objects_url, backlog_limit=3) as home:
        person = home.person()
        await person.grant(100)

        answers = await asyncio.gather(
            *(person.enqueue() for _ in range(6)), return_exceptions=True
        )
        await home.hand().claim()
        await person.enqueue()

    refused = [answer for answer in answers if isinstance(answer, TooMany)]
    assert [failure.machine_word for failure in refused] == ["backlog_full"] * 3
    assert refused[0].facts["retry_after_seconds"] > 0


@pytest.mark.parametrize(
    ("params", "paths"),
    [
        ({"prompt": ""}, ["params.prompt"]),
        ({"prompt": "x" * 4_001}, ["params.prompt"]),
        ({"size": "63x64"}, ["params.size"]),
        ({"count": 9, "transparent": 1, "wings": 2}, ["count", "transparent", "wings"]),
        ({"references": ["rs_1"] * 9}, ["params.references"]),
        ({"model": "dream-9"}, ["params.model"]),
    ],
)
async def test_wrong_params_are_named_by_their_path_and_cost_nothing(
    person: Person, params: dict[str, Any], paths: list[str]
) -> None:
    """GN1"""
    with pytest.raises(Invalid) as caught:
        await person.enqueue(**params)

    named = [error["path"].removeprefix("params.") for error in caught.value.facts["errors"]]
    assert named == [path.removeprefix("params.") for path in paths]
    assert await person.balance() == 100


async def test_an_unknown_kind_is_refused(person: Person) -> None:
    """GN1"""
    with pytest.raises(Invalid) as caught:
        await person.enqueue(kind="editor_wish", canvas_id="no good")

    assert [error["path"] for error in caught.value.facts["errors"]] == ["kind", "canvasId"]


def _order(key: str, **params: Any) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(
        dedupe_key=key,
        kind="editor_image_generation",
        params=json.dumps({"prompt": "a lantern", "size": "64x64", **params}).encode(),
        canvas_id="cv_1",
    )


def _reason(outcome: pb.EnqueueOutcome) -> str | None:
    """Why a job of a list was refused, if it was."""
    if outcome.HasField("enqueued"):
        return None
    failure = error_from_message(Status.FromString(outcome.status))
    assert isinstance(failure, Failure)
    return failure.machine_word


async def test_each_job_of_a_list_is_stored_or_refused_by_itself(home: House) -> None:
    """GN35"""
    person = home.person()
    await person.grant(24)
    before = await person.enqueue_all(_order("old"))

    outcomes = await person.enqueue_all(
        _order("old"),
        _order("old", count=2),
        _order("new", count=3),
        _order("wrong", wings=2),
        _order("new", count=3),
        _order("dear", count=3),
        _order("last"),
        _order("\0"),
    )

    stored = [outcome.enqueued for outcome in outcomes]
    assert [_reason(outcome) for outcome in outcomes] == [
        None,
        "idempotency_key_reused",
        None,
        "invalid_argument",
        None,
        "insufficient_balance",
        None,
        "invalid_argument",
    ]
    assert [stored[number].replayed for number in (0, 2, 4, 6)] == [True, False, True, False]
    assert stored[0].job.job_id == before[0].enqueued.job.job_id
    assert stored[4].job == stored[2].job
    wallet = await person.wallet()
    assert wallet.balance_micros == 4 * CREDIT
    assert [entry.balance_after_micros // CREDIT for entry in wallet.entries] == [4, 8, 20, 24]
    assert [job.job_id for job in (await person.jobs()).jobs] == [
        stored[6].job.job_id,
        stored[2].job.job_id,
        stored[0].job.job_id,
    ]


async def test_a_list_keeps_to_the_backlog_and_the_turns(database: str, objects_url: str) -> None:
    """GN35"""
    async with house(database, objects_url, running_limit=2, backlog_limit=3) as home:
        person = home.person()
        await person.grant(100)

        outcomes = await person.enqueue_all(*(_order(str(number)) for number in range(5)))
        claimed = await home.hand().claim(limit=5)

    assert [_reason(outcome) for outcome in outcomes] == [None] * 3 + ["backlog_full"] * 2
    assert [job.job_id for job in claimed] == [
        outcome.enqueued.job.job_id for outcome in outcomes[:2]
    ]


async def test_two_lists_at_once_with_the_same_keys_store_each_job_once(person: Person) -> None:
    """GN35"""
    orders = [_order(str(number)) for number in range(10)]

    lists = await asyncio.gather(*(person.enqueue_all(*orders) for _ in range(4)))

    ids = [[outcome.enqueued.job.job_id for outcome in outcomes] for outcomes in lists]
    assert ids[1:] == ids[:1] * 3
    assert await person.balance() == 100 - 10 * 4


async def test_without_credits_every_job_of_a_list_is_refused(home: House) -> None:
    """GN35"""
    outcomes = await home.person().enqueue_all(_order("a"), _order("b"))

    assert [_reason(outcome) for outcome in outcomes] == ["insufficient_balance"] * 2


@pytest.mark.parametrize("count", [0, 101])
async def test_a_list_of_no_jobs_or_too_many_is_refused(person: Person, count: int) -> None:
    """GN35"""
    with pytest.raises(Invalid) as refused:
        await person.enqueue_all(*(_order("a") for _ in range(count)))

    assert refused.value.facts["path"] == "requests"


async def test_two_claims_never_get_the_same_attempt(home: House, person: Person) -> None:
    """GN5"""
    for _ in range(20):
        await person.enqueue()

    claims = await asyncio.gather(*(home.hand().claim(3) for _ in range(10)))

    claimed = [job.job_id for jobs in claims for job in jobs]
    assert len(claimed) == len(set(claimed)) == 20


async def test_a_claim_hands_out_what_the_job_needs(person: Person, hand: Hand) -> None:
    """GN5"""
    enqueued = (await person.enqueue(seed=7)).job

    (job,) = await hand.claim()

    assert (job.job_id, job.lease_token, job.attempt) == (enqueued.job_id, 1, 1)
    assert (job.account_id, job.kind) == (person.account_id, "editor_image_generation")
    assert b'"seed": 7' in job.params
    running = await person.job(job.job_id)
    assert (running.status, running.phase) == (pb.JOB_STATUS_RUNNING, pb.JOB_PHASE_GENERATING)
    assert running.HasField("start_time")


async def test_a_claim_waits_and_is_woken_by_a_job(home: House, person: Person) -> None:
    """GN18"""
    waiting = asyncio.create_task(home.hand().claim(wait=20))
    await person.enqueue()

    async with asyncio.timeout(5):
        jobs = await waiting

    assert len(jobs) == 1


async def test_a_claim_at_another_process_is_woken_by_a_job(home: House, objects_url: str) -> None:
    """GN18"""
    # Whatever is not told by notification is not seen before the claim is over.
    async with (
        house(home.database_url, objects_url, poll_seconds=60) as other,
        asyncio.timeout(10),
    ):
        person = home.person()
        await person.grant(100)
        waiting = asyncio.create_task(other.hand().claim(wait=20))
        while not waiting.done():
            await person.enqueue()

        jobs = await waiting

    assert len(jobs) == 1


async def test_a_claim_that_finds_nothing_is_empty_in_time(hand: Hand) -> None:
    """GN5"""
    assert await hand.claim(wait=0.05) == []


async def test_repeating_a_claim_answers_what_it_got(person: Person, hand: Hand) -> None:
    """GN6"""
    for _ in range(4):
        await person.enqueue()
    first = await hand.claim(2, claim_id="one")

    again = await hand.claim(2, claim_id="one", wait=20)
    await hand.complete(first[0])
    rest = await hand.claim(2, claim_id="one", wait=20)

    assert again == first
    assert rest == first[1:]
    assert len(await hand.claim(4)) == 2


async def test_one_claim_eight_times_at_once_takes_its_jobs_once(
    person: Person, hand: Hand
) -> None:
    """GN6"""
    for _ in range(8):
        await person.enqueue()

    claims = await asyncio.gather(*(hand.claim(1, claim_id="one") for _ in range(8)))

    assert len({job.job_id for jobs in claims for job in jobs}) == 1
    assert all(len(jobs) == 1 for jobs in claims)


async def test_a_stale_lease_is_fenced_on_every_call(
    home: House, person: Person, hand: Hand
) -> None:
    """GN7"""
    await person.enqueue()
    await home.execute("UPDATE generation.job SET max_attempts = 2")
    (stale,) = await hand.claim()
    await home.expire(stale.job_id)
    (fresh,) = await home.hand().claim()

    with pytest.raises(FailedPrecondition) as caught:
        await hand.update_phase(stale)

    assert caught.value.machine_word == "lease_fenced"
    assert await hand.renew(stale) == [FENCED]
    assert await hand.complete(stale) == [FENCED]
    assert await hand.fail(stale) == [FENCED]
    assert (fresh.lease_token, fresh.attempt) == (2, 2)
    assert (await person.job(stale.job_id)).status == pb.JOB_STATUS_RUNNING


async def test_a_lease_that_is_over_is_fenced_though_nobody_took_it(
    home: House, person: Person, hand: Hand
) -> None:
    """GN7"""
    await person.enqueue()
    (job,) = await hand.claim()
    await home.expire(job.job_id)

    with pytest.raises(FailedPrecondition):
        await hand.update_phase(job)

    assert await hand.renew(job) == [FENCED]
    assert await hand.complete(job) == [FENCED]
    assert await hand.fail(job) == [FENCED]


async def test_another_worker_with_the_right_token_is_fenced(
    home: House, person: Person, hand: Hand
) -> None:
    """GN7"""
    await person.enqueue()
    (job,) = await hand.claim()

    assert await home.hand().complete(job) == [FENCED]
    assert await home.hand().renew(job) == [FENCED]


async def test_each_item_of_a_list_has_its_own_outcome(
    home: House, person: Person, hand: Hand
) -> None:
    """GN7"""
    for _ in range(3):
        await person.enqueue(is_shown=False)
    jobs = await hand.claim(3)
    await home.expire(jobs[1].job_id)

    renewed = await hand.renew(*jobs)
    completed = await hand.complete(*jobs)

    assert renewed == [OK, FENCED, OK]
    assert completed == [OK, FENCED, OK]


async def test_a_phase_is_shown_and_progress_never_falls(person: Person, hand: Hand) -> None:
    """GN9"""
    await person.enqueue()
    (job,) = await hand.claim()
    await hand.update_phase(job, pb.JOB_PHASE_PROCESSING, 60)
    await hand.update_phase(job, pb.JOB_PHASE_GENERATING, 20)

    shown = await person.job(job.job_id)

    assert (shown.phase, shown.progress) == (pb.JOB_PHASE_GENERATING, 60)


async def test_a_job_with_nothing_to_show_completes_at_once(person: Person, hand: Hand) -> None:
    """GN9"""
    await person.enqueue(is_shown=False)
    (job,) = await hand.claim()

    await hand.complete(job)

    shown = await person.job(job.job_id)
    assert (shown.status, shown.progress) == (pb.JOB_STATUS_COMPLETED, 100)
    assert shown.HasField("end_time")


async def test_the_end_of_a_job_is_announced_whoever_ends_it(
    home: House, person: Person, hand: Hand
) -> None:
    """GN21"""
    ids = [(await person.enqueue(is_shown=is_shown)).job.job_id for is_shown in (False, True, True)]
    done, broken, late = await hand.claim(3)
    await home.expire(late.job_id)

    await hand.complete(done)
    await hand.fail(broken)
    await hand.claim()

    await home.ends.of(*ids)


async def test_repeating_an_end_that_was_accepted_is_accepted(
    home: House, person: Person, hand: Hand
) -> None:
    """GN9"""
    await person.enqueue(is_shown=False)
    await person.enqueue(is_shown=False)
    done, broken = await hand.claim(2)

    completed = [await hand.complete(done) for _ in range(2)]
    failed = [await hand.fail(broken) for _ in range(2)]
    await home.ends.of(done.job_id, broken.job_id)

    assert completed == [[OK], [OK]]
    assert failed == [[OK], [OK]]
    assert await hand.fail(done) == [FENCED]
    assert await hand.complete(broken) == [FENCED]
    assert await person.balance() == 96


async def test_an_attempt_that_runs_out_is_failed_and_refunded_once(
    home: House, person: Person, hand: Hand
) -> None:
    """GN8"""
    for _ in range(3):
        await person.enqueue(count=2)
    for job in await hand.claim(3):
        await home.expire(job.job_id)

    claims = await asyncio.gather(*(home.hand().claim(3) for _ in range(8)))

    assert claims == [[]] * 8
    jobs = (await person.jobs()).jobs
    assert {job.status for job in jobs} == {pb.JOB_STATUS_FAILED}
    assert {job.error for job in jobs} == {"The job ran out of time."}
    refunds = [entry for entry in (await person.wallet()).entries if entry.kind == "refund"]
    assert {entry.entry_id for entry in refunds} == {job.refund_entry_id for job in jobs}
    assert [entry.balance_after_micros for entry in refunds] == [
        100 * CREDIT,
        92 * CREDIT,
        84 * CREDIT,
    ]


async def test_an_expired_attempt_marks_its_placeholder(
    home: House, person: Person, hand: Hand
) -> None:
    """GN8"""
    board = person.board()
    await board.create(placeholder("n1"))
    job_id = (await person.enqueue(node_id="n1")).job.job_id
    await hand.claim()
    await home.expire(job_id)

    await hand.claim()

    await home.delivered()
    (node,) = await board.nodes()
    assert node["metadata"]["status"] == "error"
    assert node["metadata"]["errorDetails"] == "The job ran out of time."
    assert node["metadata"]["taskStatus"] == "failed"
    assert (await person.job(job_id)).status == pb.JOB_STATUS_FAILED


async def test_a_failure_marks_the_placeholder_and_is_refunded_once(
    home: House, person: Person, hand: Hand
) -> None:
    """GN13"""
    board = person.board()
    await board.create(placeholder("n1"))
    job_id = (await person.enqueue(node_id="n1")).job.job_id
    (job,) = await hand.claim()

    await hand.fail(job, error="The model refused this prompt.")
    await home.ends.of(job_id)

    (node,) = await board.nodes()
    shown = await person.job(job_id)
    entry = (await person.wallet()).entries[0]
    assert node["metadata"]["errorDetails"] == "The model refused this prompt."
    assert (node["metadata"]["taskId"], node["type"]) == (job_id, "config")
    assert (shown.status, shown.error) == (
        pb.JOB_STATUS_FAILED,
        "The model refused this prompt.",
    )
    assert (entry.kind, entry.reference) == ("refund", f"refund:{job_id}")
    assert (shown.refund_entry_id, await person.balance()) == (entry.entry_id, 100)


async def test_a_failure_with_attempts_left_waits_for_the_next(
    home: House, person: Person, hand: Hand
) -> None:
    """GN13"""
    job_id = (await person.enqueue()).job.job_id
    await home.execute("UPDATE generation.job SET max_attempts = 2")
    (first,) = await hand.claim()

    await hand.fail(first)
    shown = await person.job(job_id)
    at_once = await hand.claim()
    await home.execute("UPDATE generation.job SET available_at = now()")
    (second,) = await hand.claim(wait=5)

    assert (shown.status, at_once) == (pb.JOB_STATUS_PENDING, [])
    assert (second.attempt, second.lease_token) == (2, 2)
    assert await person.balance() == 96


async def test_a_result_makes_the_placeholder_a_picture(
    home: House, person: Person, hand: Hand
) -> None:
    """GN10"""
    board = person.board()
    await board.create(placeholder("n1", errorDetails="an old one"))
    job_id = (await person.enqueue(node_id="n1", count=3)).job.job_id
    await board.patch("n1", {"metadata.taskId": job_id}, {})
    (job,) = await hand.claim()

    await hand.complete(job, outputs=3)
    await home.ends.of(job_id)

    main, second, third = await board.nodes()
    expected = {
        "status": "success",
        "storageKey": "resource:rs_1",
        "assetId": "as_1",
        "mimeType": "image/png",
        "naturalWidth": 200,
        "naturalHeight": 100,
        "taskId": job_id,
        "taskStatus": "succeeded",
    }
    assert (main["type"], main["title"], main["width"]) == ("image", "Waiting", 320)
    assert main["metadata"].items() >= expected.items()
    assert main["metadata"]["errorDetails"] is None
    assert main["metadata"]["taskUpdatedAt"].endswith("Z")
    assert [node["position"] for node in (second, third)] == [
        {"x": 460, "y": 50.5},
        {"x": 820, "y": 50.5},
    ]
    assert second["metadata"]["storageKey"] == "resource:rs_2"
    assert (second["width"], second["height"]) == (320, 300)
    assert (await person.job(job_id)).status == pb.JOB_STATUS_COMPLETED


async def test_what_the_user_did_to_the_placeholder_is_kept(
    home: House, person: Person, hand: Hand
) -> None:
    """GN10"""
    board = person.board()
    await board.create(placeholder("n1"))
    job_id = (await person.enqueue(node_id="n1")).job.job_id
    (job,) = await hand.claim()
    await board.patch(
        "n1",
        {"title": "Mine", "position": {"x": 1, "y": 2}, "width": 99, "metadata.note": "hm"},
        {"title": "Waiting", "position": {"x": 100, "y": 50.5}, "width": 320},
    )

    await hand.complete(job)
    await home.ends.of(job_id)

    (node,) = await board.nodes()
    assert (node["title"], node["position"], node["width"]) == ("Mine", {"x": 1, "y": 2}, 99)
    assert (node["metadata"]["note"], node["metadata"]["status"]) == ("hm", "success")


async def test_a_placeholder_that_is_gone_stays_gone(
    home: House, person: Person, hand: Hand
) -> None:
    """GN10"""
    board = person.board()
    await board.create(placeholder("n1"))
    job_id = (await person.enqueue(node_id="n1")).job.job_id
    (job,) = await hand.claim()
    await board.remove(placeholder("n1"))

    await hand.complete(job)
    await home.ends.of(job_id)

    assert await board.nodes() == []
    assert (await person.job(job_id)).status == pb.JOB_STATUS_COMPLETED
    assert await person.balance() == 96


@pytest.mark.parametrize("metadata", [{"taskId": "tk_another"}, {"taskId": 7}])
async def test_a_placeholder_of_another_task_is_left_alone(
    home: House, person: Person, hand: Hand, metadata: dict[str, Any]
) -> None:
    """GN10"""
    board = person.board()
    await board.create(placeholder("n1", **metadata))
    done = (await person.enqueue(node_id="n1")).job.job_id
    broken = (await person.enqueue(node_id="n1")).job.job_id
    jobs = await hand.claim(2)

    await hand.complete(jobs[0])
    await hand.fail(jobs[1])
    await home.ends.of(done, broken)

    assert await board.nodes() == [placeholder("n1", **metadata)]
    assert (await person.job(done)).status == pb.JOB_STATUS_COMPLETED
    assert (await person.job(broken)).status == pb.JOB_STATUS_FAILED


async def test_without_a_placeholder_nodes_are_made_at_the_position(
    home: House, person: Person, hand: Hand
) -> None:
    """GN10"""
    board = person.board()
    await board.create()
    job_id = (await person.enqueue(position=(-10.5, 7), count=2)).job.job_id
    (job,) = await hand.claim()

    await hand.complete(job, outputs=2)
    await home.ends.of(job_id)

    first, second = await board.nodes()
    assert (first["id"], first["type"]) == (f"{job_id}-1", "image")
    assert (first["title"], first["metadata"]["prompt"]) == ("a paper lantern",) * 2
    assert (first["position"], first["width"]) == ({"x": -10.5, "y": 7}, 720)
    assert second["position"] == {"x": 749.5, "y": 7}


async def test_a_canvas_that_is_gone_stays_gone(home: House, person: Person, hand: Hand) -> None:
    """GN10"""
    board = person.board()
    await board.create(placeholder("n1"))
    done = (await person.enqueue(node_id="n1")).job.job_id
    broken = (await person.enqueue(position=(0, 0))).job.job_id
    jobs = await hand.claim(2)
    await board.delete()

    await hand.complete(jobs[0])
    await hand.fail(jobs[1])
    await home.ends.of(done, broken)

    with pytest.raises(NotFound):
        await board.nodes()
    assert (await person.job(done)).status == pb.JOB_STATUS_COMPLETED
    assert (await person.job(broken)).status == pb.JOB_STATUS_FAILED


async def test_a_result_that_the_canvas_has_no_room_for_is_a_failure(
    home: House, person: Person, hand: Hand
) -> None:
    """GN13"""
    board = person.board()
    await board.create(*(placeholder(f"n{number}") for number in range(5_000)))
    job_id = (await person.enqueue(node_id="n7", count=2)).job.job_id
    (job,) = await hand.claim()

    await hand.complete(job, outputs=2)
    await home.ends.of(job_id)

    shown = await person.job(job_id)
    nodes = await board.nodes()
    assert (shown.status, len(nodes)) == (pb.JOB_STATUS_FAILED, 5_000)
    assert nodes[7]["metadata"]["status"] == "error"
    assert await person.balance() == 100


async def test_jobs_of_another_account_are_none(home: House, person: Person) -> None:
    """GN16"""
    job_id = (await person.enqueue()).job.job_id
    stranger = home.person()

    with pytest.raises(NotFound):
        await stranger.job(job_id)

    assert list((await stranger.jobs()).jobs) == []
    overview = await stranger.overview()
    assert (overview.pending, overview.running) == (0, 0)
    assert not overview.HasField("update_time")


async def test_what_a_job_made_is_there_from_the_commit_point_on(
    person: Person, hand: Hand
) -> None:
    """GN34"""
    job_id = (await person.enqueue(is_shown=False)).job.job_id
    (job,) = await hand.claim()
    before = await person.result(job_id)
    await hand.complete(job, outputs=2)
    after = await person.result(job_id)
    failed_id = (await person.enqueue(is_shown=False)).job.job_id
    await hand.fail(*await hand.claim())

    failed = await person.result(failed_id)
    assert (before.status, list(before.outputs)) == (pb.JOB_STATUS_RUNNING, [])
    assert after.status == pb.JOB_STATUS_COMPLETED
    assert [output.resource_id for output in after.outputs] == ["rs_1", "rs_2"]
    assert (list(failed.outputs), after.HasField("error")) == ([], False)


async def test_what_a_job_of_another_account_made_is_not_told(
    home: House, person: Person, hand: Hand
) -> None:
    """GN34"""
    job_id = (await person.enqueue(is_shown=False)).job.job_id
    await hand.complete(*await hand.claim())

    with pytest.raises(NotFound):
        await home.person().result(job_id)


async def test_a_list_turns_its_pages_and_keeps_to_its_statuses(person: Person, hand: Hand) -> None:
    """GN16"""
    ids = [(await person.enqueue(is_shown=False)).job.job_id for _ in range(7)]
    jobs = await hand.claim(4)
    await hand.complete(*jobs[:2])
    pages, token = [], ""

    while True:
        page = await person.jobs(page_size=3, page_token=token)
        pages.append([job.job_id for job in page.jobs])
        token = page.next_page_token
        if not token:
            break
    live = await person.jobs(statuses=[pb.JOB_STATUS_RUNNING, pb.JOB_STATUS_PENDING])
    overview = await person.overview()

    assert pages == [ids[6:3:-1], ids[3:0:-1], ids[:1]]
    assert [job.job_id for job in live.jobs] == ids[6:1:-1]
    assert (overview.pending, overview.running) == (3, 2)
    assert overview.update_time == (await person.job(ids[0])).update_time


@pytest.mark.parametrize(
    "request_",
    [{"page_size": 201}, {"page_token": "x"}, {"statuses": [0]}, {"statuses": [99]}],
)
async def test_a_list_that_cannot_be_is_refused(person: Person, request_: dict[str, Any]) -> None:
    """GN16"""
    with pytest.raises(Invalid):
        await person.jobs(**request_)


@pytest.mark.parametrize(
    "claim",
    [
        {"limit": 0},
        {"limit": 101},
        {"lease": 0.5},
        {"lease": 3_601},
        {"claim_id": "x" * 201},
        {"lease": 10**12},
    ],
)
async def test_a_claim_that_cannot_be_is_refused(hand: Hand, claim: dict[str, Any]) -> None:
    """GN5"""
    with pytest.raises(Invalid):
        await hand.claim(**claim)


async def test_a_grant_is_given_once_for_each_reference(home: House) -> None:
    """GN15"""
    person, other = home.person(), home.person()

    entries = await asyncio.gather(
        *(person.grant(5, f"signup:{person.account_id}") for _ in range(8))
    )
    with pytest.raises(Conflict) as amount:
        await person.grant(6, f"signup:{person.account_id}")
    with pytest.raises(Conflict):
        await other.grant(5, f"signup:{person.account_id}")

    assert len({entry.entry_id for entry in entries}) == 1
    assert amount.value.machine_word == "idempotency_key_reused"
    assert (await person.balance(), await other.balance()) == (5, 0)


@pytest.mark.parametrize(
    ("amount", "reference"),
    [(0, "a"), (-1, "a"), (2 * 10**9, "a"), (1, "x" * 201), (1, "refund:x"), (1, "job:x")],
)
async def test_a_grant_that_cannot_be_is_refused(home: House, amount: int, reference: str) -> None:
    """GN15"""
    with pytest.raises(Invalid):
        await home.person().grant(amount, reference)


async def test_a_wallet_turns_its_pages(person: Person) -> None:
    """GN14"""
    for _ in range(4):
        await person.enqueue()

    first = await person.wallet(page_size=3)
    second = await person.wallet(page_size=3, page_token=first.next_page_token)

    deltas = [entry.delta_micros // CREDIT for entry in (*first.entries, *second.entries)]
    assert deltas == [-4, -4, -4, -4, 100]
    assert (first.balance_micros, second.next_page_token) == (84 * CREDIT, "")


async def test_the_balance_is_the_sum_of_the_ledger_whatever_happens_at_once(
    home: House,
) -> None:
    """GN14"""
    people = [home.person() for _ in range(3)]
    await asyncio.gather(*(person.grant(40) for person in people for _ in range(3)))

    async def live(person: Person) -> None:
        for _ in range(8):
            await person.enqueue(is_shown=False)
            for _ in range(2):
                hand = home.hand()
                for number, job in enumerate(await hand.claim(2)):
                    if number == 0:
                        await home.expire(job.job_id)
                    else:
                        await hand.fail(job)

    await asyncio.gather(*(live(person) for person in people for _ in range(2)))
    await home.hand().claim(100)

    wrong = await home.fetch(
        "SELECT account_id FROM generation.account"
        " LEFT JOIN (SELECT account_id, sum(delta_micros) AS total"
        "              FROM generation.ledger GROUP BY account_id) AS sums USING (account_id)"
        " WHERE balance_micros <> coalesce(total, 0)"
    )
    broken = await home.fetch(
        "SELECT key FROM (SELECT key, balance_after_micros, sum(delta_micros)"
        "                        OVER (PARTITION BY account_id ORDER BY key) AS total"
        "                   FROM generation.ledger) AS lines"
        " WHERE balance_after_micros <> total"
    )
    assert (wrong, broken) == ([], [])
