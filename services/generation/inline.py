"""Jobs that are carried out here while who asks waits: no row, no lease, no worker (GN60)."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid5

import grpc

from servicekit.errors import Failure, IdempotencyKeyReused, Unavailable
from servicekit.telemetry import logger
from services.generation.deliveries_store import Delivery
from services.generation.delivery import Deliveries
from services.generation.domain.budget import deadlines
from services.generation.domain.failures import BacklogFull, InsufficientBalance
from services.generation.domain.jobs import (
    ATTEMPT_EXPIRED,
    CANVAS_REFUSED,
    SOURCE,
    UNEXPLAINED,
    ClaimedJob,
    Draft,
    Output,
    Phase,
    Status,
    Summary,
)
from services.generation.domain.money import Entry
from services.generation.domain.params import request_digest
from services.generation.executor import Executor, NotMade
from services.generation.patience import answered
from services.generation.service import Enqueued, GenerationService
from services.generation.store import QueueStore

MAX_AT_ONCE = 4
MAX_WAITING = 100
MAX_REMEMBERED = 1_000
REFUND_SECONDS = 10.0

STOPPED = "The service was stopped before the job was done."

_JOBS = UUID("2720e26c-95ba-468f-9950-db079257df21")


@dataclass(frozen=True)
class _Work:
    """A job that is carried out, or was. It ends with None if the queue has it."""

    digest: bytes
    task: asyncio.Task[Enqueued | None]


class Inline:
    """The jobs that this process carries out, each in a task that outlives its caller."""

    def __init__(
        self,
        accounts: QueueStore,
        queue: GenerationService,
        executor: Executor,
        deliveries: Deliveries,
        *,
        budget_seconds: float,
    ) -> None:
        """`budget_seconds`: how long a job may take once it is begun."""
        self._accounts = accounts
        self._queue = queue
        self._executor = executor
        self._deliveries = deliveries
        self._budget_seconds = budget_seconds
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._working: dict[str, _Work] = {}
        # The newest of those that are over, so that a repeat has the same answer.
        self._over: dict[str, _Work] = {}
        self._makings: set[asyncio.Task[str | None]] = set()
        self._is_stopped = False
        self._log = logger("generation.inline")

    async def enqueue(self, account_id: str, draft: Draft) -> Enqueued:
        """Charges the account and carries the job out, once for each dedupe key (GN60, GN61).

        Answers once it is over. Raises `IdempotencyKeyReused`, `BacklogFull` or
        `InsufficientBalance`; then nothing is charged.
        """
        job = job_of(account_id, draft)
        known = self._working.get(job.job_id) or self._over.get(job.job_id)
        if known is None and len(self._working) >= MAX_AT_ONCE + MAX_WAITING:
            raise BacklogFull(MAX_WAITING)
        if known is not None and known.digest != draft.digest:
            raise IdempotencyKeyReused
        work = known or self._begun(job, draft)
        ended = await asyncio.shield(work.task)
        if ended is None:
            return await self._queue.enqueue(account_id, draft)
        return replace(ended, is_repeat=known is not None or ended.is_repeat)

    async def enqueue_all(
        self, account_id: str, drafts: Sequence[Draft]
    ) -> list[Enqueued | Failure]:
        """Carries jobs out side by side; what became of each, in order, once all are over."""
        return await asyncio.gather(*(self._outcome(account_id, draft) for draft in drafts))

    @asynccontextmanager
    async def working(
        self, draining: asyncio.Event, *, drain_seconds: float
    ) -> AsyncIterator[None]:
        """Works inside the block; what outlasts the drain is failed and refunded."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._drained(draining, drain_seconds))
            yield

    async def _outcome(self, account_id: str, draft: Draft) -> Enqueued | Failure:
        try:
            return await self.enqueue(account_id, draft)
        except Failure as failure:
            return failure

    async def _drained(self, draining: asyncio.Event, drain_seconds: float) -> None:
        await draining.wait()
        left = [work.task for work in self._working.values()]
        if left:
            await asyncio.wait(left, timeout=drain_seconds)
        self._is_stopped = True
        for making in self._makings:
            making.cancel()
        while self._working:
            await asyncio.wait([work.task for work in self._working.values()])

    def _begun(self, job: ClaimedJob, draft: Draft) -> _Work:
        work = _Work(draft.digest, asyncio.create_task(self._carried_out(job, draft)))
        self._working[job.job_id] = work
        work.task.add_done_callback(lambda _: self._put_away(job.job_id))
        return work

    def _put_away(self, job_id: str) -> None:
        work = self._working.pop(job_id)
        # Who waits for it is told the failure; a repeat begins anew.
        if work.task.cancelled() or work.task.exception() or work.task.result() is None:
            return
        self._over[job_id] = work
        if len(self._over) > MAX_REMEMBERED:
            del self._over[next(iter(self._over))]

    async def _carried_out(self, job: ClaimedJob, draft: Draft) -> Enqueued | None:
        """Brings a job to its end; None, and nothing is done, if the queue has it."""
        async with self._accounts.locked(job.account_id) as account:
            if account is None:
                raise InsufficientBalance(balance_micros=0, price_micros=draft.price_micros)
            is_queued = bool((await account.gather([draft.dedupe_key])).known)
            entries = await account.entries(job.job_id)
            charge, refund = entries.get("charge"), entries.get("refund")

            is_repeat = charge is not None
            if is_queued:
                return None
            if charge is not None and charge.entry_id != entry_id_of(job, draft):
                raise IdempotencyKeyReused
            if charge is None:
                if account.balance_micros < draft.price_micros:
                    raise InsufficientBalance(
                        balance_micros=account.balance_micros, price_micros=draft.price_micros
                    )
                charge = await account.charge(
                    job.job_id, draft.price_micros, entry_id=entry_id_of(job, draft)
                )
        if refund is not None:
            # Why is not kept with the money.
            summary = summary_of(
                job,
                draft,
                charge,
                refund.created_at,
                error=UNEXPLAINED,
                refund_entry_id=refund.entry_id,
            )
            return Enqueued(summary, is_repeat)
        error = await self._error(job, draft, is_repeat=is_repeat)
        refund_entry_id = None if error is None else await self._refunded(job)
        summary = summary_of(
            job, draft, charge, datetime.now(UTC), error=error, refund_entry_id=refund_entry_id
        )
        return Enqueued(summary, is_repeat)

    async def _error(self, job: ClaimedJob, draft: Draft, *, is_repeat: bool) -> str | None:
        """Carries a job out and shows its end on the canvas; why there is no result, if so."""
        making = asyncio.create_task(self._shown(job, draft, is_repeat=is_repeat))
        if self._is_stopped:
            making.cancel()
        self._makings.add(making)
        await asyncio.wait([making])
        self._makings.discard(making)
        is_made = not making.cancelled() and making.exception() is None
        await self._executor.end(job, is_unwanted=not is_made)
        error = STOPPED
        if not making.cancelled():
            match making.exception():
                case None:
                    return making.result()
                case NotMade() as reason:
                    error = reason.sentence
                case TimeoutError():
                    error = ATTEMPT_EXPIRED
                case Failure() | grpc.aio.AioRpcError() as unanswered:
                    self._log.warning("not shown", job_id=job.job_id, why=str(unanswered))
                    error = CANVAS_REFUSED
                case fault:
                    self._log.error("fault", job_id=job.job_id, exc_info=fault)
                    error = UNEXPLAINED
        # Whatever is wrong with the canvas, the price is given back.
        telling = self._deliveries.tell_canvas(delivery_of(job, draft, error=error))
        (told,) = await asyncio.gather(telling, return_exceptions=True)
        if isinstance(told, BaseException):
            self._log.warning("failure not shown", job_id=job.job_id, why=repr(told))
        return error

    async def _shown(self, job: ClaimedJob, draft: Draft, *, is_repeat: bool) -> str | None:
        """Makes what a job asks for, and puts it on the canvas; why that was refused, if so."""
        async with self._slots:
            started = asyncio.get_running_loop().time()
            limits = deadlines(self._budget_seconds, started=started)
            async with asyncio.timeout_at(limits.job):
                # What an earlier process kept is not asked for again.
                kept = await self._executor.kept(job) if is_repeat else {}
                outputs = await self._executor.outputs(job, limits, _unreported, kept)
                delivery = delivery_of(job, draft, outputs=tuple(outputs))
                telling = partial(self._deliveries.tell_canvas, delivery)
                return await answered(telling, until=limits.job)

    async def _refunded(self, job: ClaimedJob) -> str:
        """Gives back what a job cost, once; the entry's id. Tries until the process has to end."""
        loop = asyncio.get_running_loop()
        while True:
            until = loop.time() + REFUND_SECONDS
            try:
                return await answered(partial(self._refund, job), until=until)
            except Unavailable:
                if self._is_stopped:
                    raise

    async def _refund(self, job: ClaimedJob) -> str:
        async with self._accounts.locked(job.account_id) as account:
            assert account is not None
            known = (await account.entries(job.job_id)).get("refund")
            return known.entry_id if known else await account.refund(job.job_id)


def job_of(account_id: str, draft: Draft) -> ClaimedJob:
    """The job of a request: the same for the same account and dedupe key."""
    name = request_digest(account_id, draft.dedupe_key).hex()
    return ClaimedJob(
        job_id=f"extgen-{uuid5(_JOBS, name)}",
        lease_token=0,
        account_id=account_id,
        kind=draft.kind,
        params=draft.params,
        canvas_id=draft.canvas_id,
        attempt=1,
    )


def entry_id_of(job: ClaimedJob, draft: Draft) -> str:
    """The id of a job's charge: it is all that is kept of the request (GN61)."""
    return f"le_{uuid5(_JOBS, f'{job.job_id} {draft.digest.hex()}').hex}"


def delivery_of(
    job: ClaimedJob, draft: Draft, *, outputs: tuple[Output, ...] | None = None, error: str = ""
) -> Delivery:
    """The end of a job, for its canvas."""
    return Delivery(
        key=0,
        token=0,
        job_id=job.job_id,
        account_id=job.account_id,
        canvas_id=job.canvas_id,
        target=draft.target,
        prompt=json.loads(draft.params)["prompt"],
        label=draft.label,
        outputs=outputs,
        warning=None,
        error=error,
        ended_at=datetime.now(UTC),
        is_over=False,
        is_cancelled=False,
    )


def summary_of(
    job: ClaimedJob,
    draft: Draft,
    charge: Entry,
    ended_at: datetime,
    *,
    error: str | None,
    refund_entry_id: str | None,
) -> Summary:
    """A job that is over, as its owner may see it."""
    return Summary(
        key=0,
        job_id=job.job_id,
        kind=job.kind,
        source=SOURCE,
        label=draft.label,
        status=Status.COMPLETED if error is None else Status.FAILED,
        phase=None,
        progress=100 if error is None else 0,
        error=error,
        warning=None,
        price_micros=draft.price_micros,
        refund_entry_id=refund_entry_id,
        canvas_id=job.canvas_id,
        node_id=draft.target.node_id if draft.target else None,
        created_at=charge.created_at,
        started_at=None,
        ended_at=ended_at,
        updated_at=ended_at,
        acknowledged_at=None,
    )


async def _unreported(_phase: Phase, _progress: int) -> None:
    """Nobody is shown the phases of a job without a row."""
