"""Deliveries step by step, with a crash after each, on real PostgreSQL and a real canvas."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

import asyncpg
import pytest
from gesso.generation.v1 import generation_pb2 as pb

from servicekit import postgres
from servicekit.postgres import DatabaseSettings
from services.canvas import server as canvas_server
from services.generation.canvases import Canvases, Seen
from services.generation.deliveries_store import DeliveriesStore, Delivery
from services.generation.delivery import Deliveries, Pace, delivering
from services.generation.domain.failures import JobFinishing
from services.generation.domain.jobs import (
    Completion,
    Failing,
    Held,
    Lease,
    Output,
    Phase,
    Position,
    Status,
    Summary,
    Target,
)
from services.generation.domain.money import Grant
from services.generation.domain.requests import Request, drafted
from services.generation.leases_store import UPDATE_PHASE, LeasesStore
from services.generation.service import GenerationService
from services.generation.store import Asked, QueueStore
from services.generation.summaries_store import SummariesStore
from services.generation.turns import Turns
from services.generation.turns_store import TurnsStore
from services.generation.wakeups import Wakeups
from services.generation.wallet_store import WalletStore
from tests.support.canvases import Board, placeholder
from tests.support.generation import generation_service, generation_settings, house
from tests.support.media import register
from tests.support.services import canvas_service, canvas_settings, new_account

OUTPUT = Output("rs_1", "as_1", "image/png", 200, 100)


def _asked(claim_id: str, limit: int = 1) -> Asked:
    return Asked("w", claim_id, limit, timedelta(minutes=1))


@dataclass
class Steps:
    """The parts of a generation service, without the loops that run them."""

    url: str
    service: GenerationService
    store: QueueStore
    wallet: WalletStore
    deliveries: Deliveries
    canvases: Canvases
    board: Board
    account_id: str

    async def enqueue(self, node_id: str | None = "n1", *, is_shown: bool = True) -> str:
        """A job of the account."""
        target = Target(node_id, Position()) if is_shown else None
        request = Request(
            secrets.token_hex(8), "editor_image_generation", {"prompt": "a lantern"}, "cv_1", target
        )
        enqueued = await self.service.enqueue(self.account_id, drafted(request))
        return enqueued.summary.job_id

    async def claim(self) -> Lease:
        """An attempt at the job that waits."""
        claim = _asked(secrets.token_hex(8))
        claimed = await self.store.claim([claim])
        (job,) = claimed.jobs["w", claim.claim_id]
        return Lease("w", job.job_id, job.lease_token)

    async def committed(self) -> str:
        """A job whose result is stored and not delivered."""
        job_id = await self.enqueue()
        ending = Completion(await self.claim(), (OUTPUT,), None)
        assert await self.service.complete([ending]) == [Held.OK]
        return job_id

    async def reported(self) -> str:
        """A job whose failure is stored and not delivered."""
        job_id = await self.enqueue()
        assert await self.service.fail([Failing(await self.claim(), "It broke.")]) == [Held.OK]
        return job_id

    async def take(self) -> Delivery:
        """The delivery that is due."""
        (delivery,) = await self.deliveries.take(8)
        return delivery

    async def job(self, job_id: str) -> Summary:
        """What its owner sees of a job."""
        return await self.service.summary(self.account_id, job_id)

    async def events(self, kind: str) -> int:
        """How often something happened."""
        connection = await asyncpg.connect(self.url)
        try:
            count: int = await connection.fetchval(
                "SELECT count(*) FROM generation.event WHERE kind = $1", kind
            )
        finally:
            await connection.close()
        return count

    async def balance(self) -> int:
        """In whole credits."""
        balance, _ = await self.wallet.page(self.account_id, 2**62, 1)
        return balance // 1_000_000


@asynccontextmanager
async def stepping(url: str, objects_url: str) -> AsyncIterator[Steps]:
    """An account with a canvas and credits. A delivery's lease is over as soon as it is taken."""
    behalf = new_account()
    assert behalf.account_id is not None
    async with (
        canvas_service(canvas_settings(url, objects_url)) as canvas,
        postgres.connected(DatabaseSettings(database_url=url), application="steps") as database,
    ):
        board = Board(canvas, behalf, "cv_1")
        await board.create(placeholder("n1"))
        await register(url, behalf.account_id)
        store, wallet = QueueStore(database), WalletStore(database)
        await wallet.grant(Grant(behalf.account_id, 100_000_000, secrets.token_hex(8)))
        service = GenerationService(
            store,
            LeasesStore(database),
            SummariesStore(database),
            Wakeups(),
            Turns(TurnsStore(database), Wakeups(), limit=4, poll_seconds=1),
            backlog_limit=100,
        )
        canvases = Canvases(canvas)
        pace = Pace(lease_seconds=0, pause_seconds=0, poll_seconds=1, drain_seconds=1)
        deliveries = Deliveries(DeliveriesStore(database), canvases, Wakeups(), pace)
        async with service.settling():
            yield Steps(url, service, store, wallet, deliveries, canvases, board, behalf.account_id)


@pytest.fixture
async def steps(database: str, objects_url: str) -> AsyncIterator[Steps]:
    """The parts, on a database of their own."""
    async with stepping(database, objects_url) as made:
        yield made


async def test_between_commit_point_and_delivery_the_job_is_still_running(steps: Steps) -> None:
    """GN9"""
    job_id = await steps.committed()

    shown = await steps.job(job_id)

    assert (shown.status, shown.phase) == (Status.RUNNING, Phase.PROCESSING)
    again = await steps.store.claim([_asked("later")])
    assert again.jobs == {}


async def test_a_crash_after_the_commit_point_loses_nothing(steps: Steps) -> None:
    """GN12"""
    job_id = await steps.committed()

    delivery = await steps.take()
    await steps.deliveries.finish(delivery, await steps.deliveries.tell_canvas(delivery))

    assert (await steps.job(job_id)).status is Status.COMPLETED
    assert (await steps.board.nodes())[0]["metadata"]["status"] == "success"


async def test_a_crash_after_the_delivery_was_taken_loses_nothing(steps: Steps) -> None:
    """GN12"""
    job_id = await steps.committed()
    first = await steps.take()

    second = await steps.take()
    await steps.deliveries.finish(second, await steps.deliveries.tell_canvas(second))

    assert second.token > first.token
    assert (await steps.job(job_id)).status is Status.COMPLETED
    assert await steps.deliveries.take(8) == []


async def test_a_crash_after_the_canvas_was_told_tells_it_once(steps: Steps) -> None:
    """GN11"""
    job_id = await steps.committed()
    first = await steps.take()
    await steps.deliveries.tell_canvas(first)
    revision = await steps.board.revision()
    await steps.board.patch("n1", {"title": "Mine"}, {"title": "Waiting"})

    second = await steps.take()
    await steps.deliveries.finish(second, await steps.deliveries.tell_canvas(second))

    assert await steps.board.revision() == revision + 1
    assert (await steps.board.nodes())[0]["title"] == "Mine"
    assert (await steps.job(job_id)).status is Status.COMPLETED


async def test_a_result_is_not_put_back_after_it_was_delivered_and_deleted(steps: Steps) -> None:
    """GN11"""
    await steps.enqueue(node_id=None)
    await steps.service.complete([Completion(await steps.claim(), (OUTPUT,), None)])
    await steps.deliveries.tell_canvas(await steps.take())
    _, picture = await steps.board.nodes()
    await steps.board.remove(picture)

    again = await steps.take()
    await steps.deliveries.finish(again, await steps.deliveries.tell_canvas(again))

    assert len(await steps.board.nodes()) == 1


async def test_two_that_deliver_the_same_end_the_job_once(steps: Steps) -> None:
    """GN11"""
    await steps.committed()
    both = [await steps.take(), await steps.take()]

    errors = [await steps.deliveries.tell_canvas(delivery) for delivery in both]
    for delivery in both:
        await steps.deliveries.finish(delivery, None)

    assert errors == [None, None]
    assert await steps.events("completed") == 1


async def test_a_failure_is_refunded_once_wherever_the_crash_is(steps: Steps) -> None:
    """GN13"""
    job_id = await steps.reported()
    first = await steps.take()
    error = await steps.deliveries.tell_canvas(first)
    second = await steps.take()
    error_again = await steps.deliveries.tell_canvas(second)

    for delivery in (first, second, first, second):
        await steps.deliveries.finish(delivery, error)

    shown = await steps.job(job_id)
    assert (error, error_again, shown.error) == ("It broke.",) * 3
    assert (await steps.events("failed"), await steps.balance()) == (1, 100)


async def test_after_the_commit_point_a_job_cannot_be_taken_back(steps: Steps) -> None:
    """GN25"""
    for job_id in (await steps.committed(), await steps.reported()):
        with pytest.raises(JobFinishing):
            await steps.service.cancel(steps.account_id, job_id)

        assert (await steps.job(job_id)).status == Status.RUNNING
    assert await steps.balance() == 92


async def test_before_the_placeholder_is_told_a_failure_is_not_refunded(steps: Steps) -> None:
    """GN13"""
    job_id = await steps.reported()

    shown = await steps.job(job_id)

    assert (shown.status, shown.error) == (Status.RUNNING, None)
    assert await steps.balance() == 96


async def test_a_delivery_that_meets_a_conflict_reads_again(steps: Steps) -> None:
    """GN11"""
    await steps.committed()
    meddled = _meddled(steps, {"metadata.status": "idle"}, {"metadata.status": "loading"})

    error = await meddled.tell_canvas(await steps.take())

    (node,) = await steps.board.nodes()
    assert (error, node["metadata"]["status"]) == (None, "success")


async def test_a_placeholder_taken_over_in_the_meantime_is_left_alone(steps: Steps) -> None:
    """GN10"""
    await steps.committed()
    meddled = _meddled(steps, {"metadata.taskId": "tk_2"}, {})

    error = await meddled.tell_canvas(await steps.take())

    (node,) = await steps.board.nodes()
    assert (error, node["metadata"]["taskId"]) == (None, "tk_2")
    assert node["metadata"]["status"] == "loading"


async def test_a_canvas_service_that_is_down_delays_and_loses_nothing(
    database: str, objects_url: str
) -> None:
    """GN12"""
    async with house(database, objects_url) as home:
        await home.person().board().create()
    settings = generation_settings(database, home.canvas_address)
    async with generation_service(settings) as generation:
        alone = replace(home, generation=generation)
        person, hand = alone.person(), alone.hand()
        await person.grant(100)
        job_id = (await person.enqueue(position=(0, 0))).job.job_id
        await hand.complete(*await hand.claim())
        async with asyncio.timeout(20):
            while not await _fetchval(database, "SELECT delivery_token > 1 FROM generation.job"):
                await asyncio.sleep(0.01)
        meanwhile = await person.job(job_id)

        again = canvas_settings(database, objects_url, listen=home.canvas_address)
        async with canvas_server.serving(again), asyncio.timeout(20):
            while (await person.job(job_id)).status != pb.JOB_STATUS_COMPLETED:
                await asyncio.sleep(0.01)

    assert meanwhile.status == pb.JOB_STATUS_RUNNING


async def test_transitions_that_wait_for_one_another_keep_the_summary(steps: Steps) -> None:
    """GN7"""
    job_id = await steps.enqueue(is_shown=False)
    lease = await steps.claim()
    other = await asyncpg.connect(steps.url)
    try:
        async with other.transaction():
            await other.execute(UPDATE_PHASE, "w", job_id, lease.token, "processing", 70)
            completing = asyncio.create_task(
                steps.service.complete([Completion(lease, (OUTPUT,), "Small.")])
            )
            await _until_waiting(steps.url)
        held = await completing
    finally:
        await other.close()

    shown = await steps.job(job_id)
    assert held == [Held.OK]
    assert (shown.status, shown.progress, shown.warning) == (Status.COMPLETED, 100, "Small.")


async def test_refunds_that_wait_for_the_account_add_to_what_it_has_by_then(steps: Steps) -> None:
    """GN14"""
    jobs = [await steps.enqueue() for _ in range(2)]
    other = await asyncpg.connect(steps.url)
    try:
        async with other.transaction():
            await other.execute(
                "WITH account AS (UPDATE generation.account"
                " SET balance_micros = balance_micros + 7 RETURNING account_id, balance_micros)"
                " INSERT INTO generation.ledger"
                " (account_id, kind, delta_micros, balance_after_micros, reference)"
                " SELECT account_id, 'grant', 7, balance_micros, 'seven' FROM account"
            )
            cancelling = [
                asyncio.create_task(steps.service.cancel(steps.account_id, job_id))
                for job_id in jobs
            ]
            await _until_waiting(steps.url)
        cancelled = await asyncio.gather(*cancelling)
    finally:
        await other.close()

    assert [job.status for job in cancelled] == [Status.CANCELLED] * 2
    balance, entries = await steps.wallet.page(steps.account_id, 2**62, 10)
    assert balance == 100_000_007
    assert [entry.balance_after_micros for entry in entries[:3]] == [
        100_000_007,
        96_000_007,
        92_000_007,
    ]


class _Meddling(Canvases):
    """Canvases on which somebody is always faster, once."""

    def __init__(self, canvases: Canvases, board: Board, patch: Any, before: Any) -> None:
        self._canvases = canvases
        self._board = board
        self._change: Any = (patch, before)

    async def nodes(self, account_id: str, canvas_id: str, node_ids: Sequence[str]) -> Seen | None:
        seen = await self._canvases.nodes(account_id, canvas_id, node_ids)
        change, self._change = self._change, None
        if change:
            await self._board.patch("n1", *change)
        return seen

    async def apply(self, *arguments: Any, **named: Any) -> None:
        await self._canvases.apply(*arguments, **named)


async def test_a_delivery_that_takes_too_long_ends_before_the_process_does(steps: Steps) -> None:
    """GN12"""
    await steps.committed()
    asked = asyncio.Event()

    class Silent(Canvases):
        async def nodes(self, *_arguments: Any) -> NoReturn:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    pace = Pace(lease_seconds=60, pause_seconds=0, poll_seconds=1, drain_seconds=0)
    silent = Silent(steps.board.client)
    deliveries = Deliveries(steps.deliveries._store, silent, Wakeups(), pace)
    async with asyncio.timeout(10), delivering(deliveries):
        await asked.wait()

    assert not deliveries._running


def _meddled(steps: Steps, patch: Any, before: Any) -> Deliveries:
    canvases = _Meddling(steps.canvases, steps.board, patch, before)
    pace = Pace(lease_seconds=0, pause_seconds=0, poll_seconds=1, drain_seconds=1)
    return Deliveries(steps.deliveries._store, canvases, Wakeups(), pace)


async def _until_waiting(url: str) -> None:
    """Waits until a session waits for a lock."""
    async with asyncio.timeout(5):
        while not await _fetchval(
            url,
            "SELECT EXISTS (SELECT FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database())",
        ):
            await asyncio.sleep(0.005)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _fetchval(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
