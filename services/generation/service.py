"""What can be done with jobs."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from servicekit.errors import Failure, NotFound
from services.generation.batches import Batches, settling
from services.generation.domain.failures import (
    InsufficientBalance,
    JobFinishing,
    LeaseFenced,
)
from services.generation.domain.intake import Known, Limits, Order, taken
from services.generation.domain.jobs import (
    ENDS,
    Completion,
    Draft,
    Failing,
    Held,
    JobResult,
    Lease,
    Overview,
    Phase,
    Placed,
    Shown,
    Status,
    Summary,
)
from services.generation.durations import Durations
from services.generation.leases_store import LeasesStore, Standing
from services.generation.store import QueueStore
from services.generation.summaries_store import SummariesStore
from services.generation.turns import Turns
from services.generation.turns_store import Place
from services.generation.wakeups import Wakeups

# Nobody counts further how many jobs are before one.
MAX_COUNTED = 1_000

Renewal = tuple[Lease, timedelta]


@dataclass(frozen=True)
class Enqueued:
    """A job that was asked for, as it is now, and whether it had been stored before."""

    summary: Summary
    is_repeat: bool


class GenerationService:
    """The jobs of all accounts, and the attempts of all workers."""

    def __init__(
        self,
        store: QueueStore,
        leases: LeasesStore,
        summaries: SummariesStore,
        wakeups: Wakeups,
        turns: Turns,
        *,
        backlog_limit: int,
        has_limits: bool = False,
    ) -> None:
        """`has_limits` says that some channel has room for only so many jobs."""
        self._store = store
        self._leases = leases
        self._summaries = summaries
        self._wakeups = wakeups
        self._turns = turns
        self._backlog_limit = backlog_limit
        self._has_limits = has_limits
        self._durations = Durations()
        self._renewals = Batches(self._renew)
        self._completions = Batches(self._complete)
        self._failings = Batches(self._fail)

    def settling(self) -> AbstractAsyncContextManager[None]:
        """Settles what workers report, inside the block."""
        return settling(self._renewals, self._completions, self._failings)

    async def enqueue(self, account_id: str, draft: Draft) -> Enqueued:
        """Charges the account and stores a job, once for each dedupe key (GN2 to GN4).

        Raises `IdempotencyKeyReused`, `BacklogFull` or `InsufficientBalance`; then nothing is
        stored or charged.
        """
        (outcome,) = await self.enqueue_all(account_id, [draft])
        if isinstance(outcome, Failure):
            raise outcome
        return outcome

    async def enqueue_all(
        self, account_id: str, drafts: Sequence[Draft]
    ) -> list[Enqueued | Failure]:
        """Charges the account for jobs and stores them, one after another (GN35).

        What became of each, in order: what one is refused for does not stop the others.
        """
        async with self._store.locked(account_id) as account:
            if account is None:
                return [
                    InsufficientBalance(balance_micros=0, price_micros=draft.price_micros)
                    for draft in drafts
                ]
            found = await account.gather([draft.dedupe_key for draft in drafts])
            outcomes = taken(
                drafts,
                [f"extgen-{uuid4()}" for _ in drafts],
                found,
                account.balance_micros,
                Limits(backlog=self._backlog_limit, turns=self._turns.limit),
            )
            # A repeat within the list is the order itself once more.
            orders = list(dict.fromkeys(each for each in outcomes if isinstance(each, Order)))
            keys = await account.enqueue(orders) if orders else {}
        self._announce(account_id, orders)
        return await self._enqueued(account_id, outcomes, keys)

    def _announce(self, account_id: str, orders: Sequence[Order]) -> None:
        """Says that jobs were stored, to workers and to who watches the account."""
        pending = sum(order.is_pending for order in orders)
        if pending:
            self._wakeups.jobs_came(pending)
        if pending < len(orders):
            self._turns.may_be_free([account_id])
        for order in orders:
            self._wakeups.job_changed(order.job_id, account_id)

    async def _enqueued(
        self,
        account_id: str,
        outcomes: Sequence[Known | Order | Failure],
        keys: Mapping[str, int],
    ) -> list[Enqueued | Failure]:
        """What is told of each job that was asked for, by what it was taken for."""
        found = {
            number: keys[job.job_id] if isinstance(job, Order) else job.key
            for number, job in enumerate(outcomes)
            if not isinstance(job, Failure)
        }
        summaries = await self._summaries.summaries_of_keys(account_id, set(found.values()))
        first = {key: number for number, key in reversed(found.items())}
        return [
            job
            if isinstance(job, Failure)
            else Enqueued(
                summaries[found[number]],
                is_repeat=isinstance(job, Known) or first[found[number]] != number,
            )
            for number, job in enumerate(outcomes)
        ]

    async def cancel(self, account_id: str, job_id: str) -> Summary:
        """Cancels and refunds a job, also one that is worked on (GN25); the job as it is then.

        Raises `NotFound`, or `JobFinishing` if it has a result or an end already.
        """
        is_cancelled = await self._store.cancel(account_id, job_id)
        summary = await self.summary(account_id, job_id)
        if is_cancelled:
            self._wakeups.job_changed(job_id, account_id)
            self._wakeups.deliveries.wake()
            self._free([account_id])
        elif summary.status is not Status.CANCELLED:
            raise JobFinishing
        return summary

    async def acknowledge(self, account_id: str, job_ids: Sequence[str]) -> list[Summary]:
        """Takes note that the ends of jobs were seen; those of the jobs that are over (GN26)."""
        for job_id in await self._summaries.acknowledge(account_id, job_ids):
            self._wakeups.job_changed(job_id, account_id)
        changes = await self._summaries.newest(job_ids, [account_id])
        return [change.item for change in changes if change.item.status in ENDS]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Held]:
        """Extends leases from now on; which of them held, and whose jobs were cancelled."""
        return await self._renewals.outcomes(renewals)

    async def update_phase(self, lease: Lease, phase: Phase, progress: int) -> None:
        """Writes the phase of an attempt. Raises `LeaseFenced`."""
        account_id = await self._leases.update_phase(lease, phase, progress)
        if account_id is None:
            raise LeaseFenced
        self._wakeups.job_changed(lease.job_id, account_id)

    async def complete(self, completions: Sequence[Completion]) -> list[Held]:
        """Ends attempts with results: the commit point (GN9); which of the leases held.

        A repeat of a completion that was accepted is accepted.
        """
        return await self._completions.outcomes(completions)

    async def fail(self, failings: Sequence[Failing]) -> list[Held]:
        """Ends attempts with errors (GN13); which of the leases held.

        A repeat of a failure that was accepted is accepted.
        """
        return await self._failings.outcomes(failings)

    async def summary(self, account_id: str, job_id: str) -> Summary:
        """A job as its owner may see it. Raises `NotFound`."""
        summary = await self._summaries.summary(account_id, job_id)
        if summary is None:
            raise NotFound("job")
        return summary

    async def result(self, account_id: str, job_id: str) -> JobResult:
        """What a job made, for services that go on with it (GN34). Raises `NotFound`."""
        result = await self._leases.result(account_id, job_id)
        if result is None:
            raise NotFound("job")
        return result

    async def page(self, account_id: str, shown: Shown, before: int, limit: int) -> list[Summary]:
        """Up to `limit` of the jobs to be shown with keys below `before`, newest first."""
        return await self._summaries.page(account_id, shown, before, limit)

    async def overview(self, account_id: str) -> Overview:
        """How many jobs the account has under way."""
        return await self._summaries.overview(account_id)

    async def placed(self, account_id: str, summaries: Sequence[Summary]) -> list[Placed]:
        """Jobs of the account with their places in the queue, those that wait (GN29)."""
        places = {}
        if any(summary.status is Status.PENDING for summary in summaries):
            places = await self._turns.places(account_id)
        return [self._placed(summary, places.get(summary.job_id)) for summary in summaries]

    def _placed(self, summary: Summary, place: Place | None) -> Placed:
        if place is None or summary.status is not Status.PENDING:
            return Placed(summary)
        eta = self._durations.eta(summary.kind, ahead=place.ahead, running=place.running)
        return Placed(summary, min(place.ahead, MAX_COUNTED) + 1, eta)

    async def _renew(self, renewals: Sequence[Renewal]) -> list[Held]:
        leases = [lease for lease, _ in renewals]
        held = await self._leases.renew(sorted(renewals, key=lambda renewal: renewal[0].job_id))
        lost = [lease for lease in leases if lease not in held]
        cancelled = await self._leases.cancelled(lost) if lost else set()
        return [_held(lease in held, is_cancelled=lease in cancelled) for lease in leases]

    async def _complete(self, completions: Sequence[Completion]) -> list[Held]:
        leases = [completion.lease for completion in completions]
        ended = await self._leases.complete(sorted(completions, key=_by_job))
        for made in ended.values():
            if made.took is not None:
                self._durations.took(made.kind, made.took)
        self._wake(ended)
        return await self._outcomes(leases, ended, with_result=True)

    async def _fail(self, failings: Sequence[Failing]) -> list[Held]:
        leases = [failing.lease for failing in failings]
        ended = await self._leases.fail(sorted(failings, key=_by_job))
        self._wake(ended)
        return await self._outcomes(leases, ended, with_result=False)

    def _wake(self, ended: Mapping[Lease, Standing]) -> None:
        for lease, standing in ended.items():
            self._wakeups.job_changed(lease.job_id, standing.account_id)
        if any(standing.status == "delivering" for standing in ended.values()):
            self._wakeups.deliveries.wake()
        self._free(
            [standing.account_id for standing in ended.values() if standing.status != "pending"]
        )

    def _free(self, account_ids: Collection[str]) -> None:
        """Jobs of these accounts were under way, and are no more."""
        self._turns.may_be_free(account_ids)
        if self._has_limits:
            self._wakeups.jobs_came(len(account_ids))

    async def _outcomes(
        self, leases: Sequence[Lease], ended: Mapping[Lease, Standing], *, with_result: bool
    ) -> list[Held]:
        unsaid = [lease for lease in leases if lease not in ended]
        accepted = await self._leases.accepted(unsaid, with_result=with_result) if unsaid else set()
        return [_held(lease in ended or lease in accepted) for lease in leases]


def _held(is_held: bool, *, is_cancelled: bool = False) -> Held:
    if is_held:
        return Held.OK
    return Held.CANCELLED if is_cancelled else Held.FENCED


def _by_job(ending: Completion | Failing) -> str:
    # Statements that take the rows of the same jobs take them in the same order.
    return ending.lease.job_id
