"""The queue on real PostgreSQL against a small model, in any order of steps.

Time is moved by changing what is stored, never by waiting.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from servicekit import postgres as postgres_client
from servicekit.errors import Failure
from servicekit.postgres import DatabaseSettings
from services.generation.calls_store import CallsStore
from services.generation.deliveries_store import DeliveriesStore
from services.generation.domain.calls import Begun, Call
from services.generation.domain.failures import JobFinishing, LeaseFenced
from services.generation.domain.jobs import (
    ENDS,
    ClaimedJob,
    Completion,
    Failing,
    Held,
    Lease,
    Output,
    Phase,
    Position,
    Target,
)
from services.generation.domain.money import Grant
from services.generation.domain.requests import Request, drafted
from services.generation.leases_store import LeasesStore
from services.generation.service import GenerationService
from services.generation.store import MAX_RESUMES, Asked, QueueStore
from services.generation.summaries_store import SummariesStore
from services.generation.turns import Turns
from services.generation.turns_store import TurnsStore
from services.generation.wakeups import Wakeups
from services.generation.wallet_store import WalletStore
from suite import postgres
from tests.support.database import fresh_database

ACCOUNT = "us_model"
PRICE = 4_000_000
WORKERS = ("w1", "w2")
OUTPUTS = (Output("rs_1", "as_1", "image/png", 10, 10),)
NEVER = 10**9
TURNS = 2


@dataclass
class Job:
    """What the model knows of a job. `until` is its place in the order of expiry."""

    job_id: str
    is_shown: bool
    max_attempts: int
    status: str = "pending"
    attempt: int = 0
    worker: str | None = None
    token: int = 0
    until: int = NEVER
    is_ready: bool = True
    has_result: bool = False
    is_to_mark: bool = False
    is_seen: bool = False
    resumes: int = 0
    # By number: the token that began it, and whether the provider accepted it.
    calls: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def holds(self, lease: Lease) -> bool:
        """Whether a lease is the living one of the job."""
        return (
            self.status == "running"
            and (self.worker, self.token) == (lease.worker_id, lease.token)
            and self.until == NEVER
        )

    @property
    def can_go_on(self) -> bool:
        """Whether its providers can be asked what became of all its calls."""
        return (
            bool(self.calls)
            and all(is_accepted for _, is_accepted in self.calls.values())
            and self.resumes < MAX_RESUMES
        )

    @property
    def outside(self) -> str:
        """The status that people see."""
        return {"delivering": "running", "waiting": "pending"}.get(self.status, self.status)


class QueueMachine(RuleBasedStateMachine):
    """Steps of people, workers, deliveries and time."""

    server: postgres.Server

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.jobs: dict[str, Job] = {}
        self.leases: list[Lease] = []
        self.ended: dict[Lease, bool] = {}
        self.claims: dict[tuple[str, str], list[Lease]] = {}
        self.balance = 0
        self.clock = 0
        self.run(self._open())

    def run(self, step: Any) -> Any:
        return self.runner.run(step)

    async def _open(self) -> None:
        url = await self.stack.enter_async_context(fresh_database(self.server))
        database = await self.stack.enter_async_context(
            postgres_client.connected(DatabaseSettings(database_url=url), application="model")
        )
        self.database = database
        self.store = QueueStore(database)
        self.wallet = WalletStore(database)
        self.deliveries = DeliveriesStore(database)
        self.turns = TurnsStore(database)
        self.calls = CallsStore(database)
        self.service = GenerationService(
            self.store,
            LeasesStore(database),
            SummariesStore(database),
            Wakeups(),
            Turns(self.turns, Wakeups(), limit=TURNS, poll_seconds=1),
            backlog_limit=5,
        )
        await self.stack.enter_async_context(self.service.settling())

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    @initialize(amount=st.integers(4, 40))
    def grant(self, amount: int) -> None:
        self.run(self.wallet.grant(Grant(ACCOUNT, amount * 1_000_000, "first")))
        self.balance = amount * 1_000_000

    @rule(key=st.integers(1, 8), is_shown=st.booleans(), max_attempts=st.integers(1, 2))
    def enqueue(self, key: int, is_shown: bool, max_attempts: int) -> None:
        target = Target("n1", Position()) if is_shown else None
        request = Request(
            f"{key}-{is_shown}", "editor_image_generation", {"prompt": "x"}, "c", target
        )
        known = self.jobs.get(request.dedupe_key)
        waiting = sum(job.outside == "pending" for job in self.jobs.values())
        try:
            enqueued = self.run(self.service.enqueue(ACCOUNT, drafted(request)))
        except Failure as failure:
            word = failure.machine_word
            assert known is None
            assert word == ("backlog_full" if waiting >= 5 else "insufficient_balance")
            assert waiting >= 5 or self.balance < PRICE
            return
        summary = enqueued.summary
        assert enqueued.is_repeat is (known is not None)
        if known:
            assert summary.job_id == known.job_id
            return
        assert waiting < 5
        assert self.balance >= PRICE
        self.balance -= PRICE
        status = "pending" if self._under_way() < TURNS else "waiting"
        self.jobs[request.dedupe_key] = Job(summary.job_id, is_shown, max_attempts, status)
        self.run(
            self.database.execute(
                "UPDATE generation.job SET max_attempts = $2 WHERE job_id = $1",
                summary.job_id,
                max_attempts,
            )
        )

    @rule()
    def give_turns(self) -> None:
        waiting = [job for job in self.jobs.values() if job.status == "waiting"]
        free = waiting[: TURNS - self._under_way()]
        assert self.run(self.turns.waiting([ACCOUNT])) == ([ACCOUNT] if waiting else [])
        assert self.run(self.turns.next_waiting("", 10)) == ([ACCOUNT] if waiting else [])
        assert self.run(self.turns.give([ACCOUNT], TURNS)) == (len(free), set())
        for job in free:
            job.status = "pending"

    def _under_way(self) -> int:
        return sum(job.status in ("pending", "running") for job in self.jobs.values())

    @invariant()
    def no_more_jobs_are_under_way_than_there_are_turns(self) -> None:
        assert self._under_way() <= TURNS

    @rule(
        claims=st.lists(
            st.tuples(st.sampled_from(WORKERS), st.integers(1, 6).map(str), st.integers(1, 4)),
            min_size=1,
            max_size=3,
            unique_by=lambda claim: claim[:2],
        )
    )
    def claim(self, claims: list[tuple[str, str, int]]) -> None:
        claimed = self.run(
            self.store.claim([Asked(*claim, timedelta(hours=1)) for claim in claims])
        )
        repeats = {(worker, claim_id) for worker, claim_id, _ in claims} & self.claims.keys()
        assert claimed.repeats == repeats
        for name in repeats:
            held = self.run(self.store.claimed_before(*name))
            living = {lease for lease in self.claims[name] if self._job(lease.job_id).holds(lease)}
            assert {Lease(name[0], job.job_id, job.lease_token) for job in held} == living
        fresh = [claim for claim in claims if claim[:2] not in repeats]
        total = sum(limit for _, _, limit in fresh)
        expired = sorted(
            (job for job in self.jobs.values() if job.status == "running" and job.until < NEVER),
            key=lambda job: job.until,
        )[:total]
        going_on = {job.job_id for job in expired if job.can_go_on}
        over = {
            job.job_id
            for job in expired
            if job.attempt == job.max_attempts and job.job_id not in going_on
        }
        again = [job.job_id for job in expired if job.job_id not in over]
        ready = [job for job in self.jobs.values() if job.status == "pending" and job.is_ready]
        got = [job.job_id for jobs in claimed.jobs.values() for job in jobs]
        assert set(claimed.failed) == over
        assert len(got) == len(set(got)) == min(total, len(again) + len(ready))
        assert set(got).issuperset(again)
        assert set(got).difference(again).issubset({job.job_id for job in ready})
        # Whoever came first has as much as it wants.
        left = len(got)
        for worker, claim_id, limit in fresh:
            jobs = claimed.jobs.get((worker, claim_id), [])
            assert len(jobs) == min(limit, left)
            left -= len(jobs)
        for job_id in over:
            self._fail(self._job(job_id))
            self._job(job_id).is_to_mark = self._job(job_id).is_shown
        for name, attempts in claimed.jobs.items():
            self.claims[name] = [self._begun(name[0], each, going_on) for each in attempts]
            self.leases += self.claims[name]

    def _begun(self, worker: str, attempt: ClaimedJob, going_on: set[str]) -> Lease:
        job = self._job(attempt.job_id)
        job.status, job.worker, job.until = "running", worker, NEVER
        job.token += 1
        if job.job_id in going_on:
            job.resumes += 1
        else:
            job.attempt += 1
        assert (attempt.attempt, attempt.lease_token) == (job.attempt, job.token)
        return Lease(worker, job.job_id, job.token)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        held = self.run(self.service.renew([(lease, timedelta(hours=1))]))
        assert held == [self._held(lease)]

    def _held(self, lease: Lease) -> Held:
        job = self._job(lease.job_id)
        if job.holds(lease):
            return Held.OK
        is_last = job.status == "cancelled" and job.token == lease.token
        return Held.CANCELLED if is_last else Held.FENCED

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(list(self.jobs.values())))
        try:
            summary = self.run(self.service.cancel(ACCOUNT, job.job_id))
        except JobFinishing:
            assert job.status in ("delivering", "completed", "failed")
            return
        assert summary.status == "cancelled"
        if job.status != "cancelled":
            assert job.status in ("waiting", "pending", "running")
            job.status, job.worker = "cancelled", None
            job.is_to_mark = job.is_shown
            self.balance += PRICE

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        asked = data.draw(st.lists(st.sampled_from(list(self.jobs.values()))))
        noted = self.run(self.service.acknowledge(ACCOUNT, [job.job_id for job in asked]))
        over = [job for job in asked if job.outside in ENDS]
        assert {summary.job_id for summary in noted} == {job.job_id for job in over}
        for job in over:
            job.is_seen = True

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), phase=st.sampled_from(Phase), progress=st.integers(0, 100))
    def report(self, data: st.DataObject, phase: Phase, progress: int) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        try:
            self.run(self.service.update_phase(lease, phase, progress))
        except LeaseFenced:
            assert not self._job(lease.job_id).holds(lease)
        else:
            assert self._job(lease.job_id).holds(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), number=st.integers(1, 2), is_accepted=st.booleans())
    def call(self, data: st.DataObject, number: int, is_accepted: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        call = Call(lease.job_id, lease.token, number)
        begun = self.run(self.calls.begin(lease.worker_id, call, "studio"))
        job = self._job(lease.job_id)
        if not job.holds(lease):
            assert begun is None
            return
        token, was_accepted = job.calls.get(number, (lease.token, False))
        assert begun == Begun(
            is_new=token == lease.token and not was_accepted,
            request_id="p" if was_accepted else None,
        )
        if begun.is_new:
            job.calls[number] = (lease.token, False)
        if is_accepted and begun.is_new:
            self.run(self.calls.accept(call, "p"))
            job.calls[number] = (lease.token, True)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        leases = data.draw(st.lists(st.sampled_from(self.leases), min_size=1, unique=True))
        completions = [Completion(lease, OUTPUTS, None) for lease in leases]
        held = self.run(self.service.complete(completions))
        for lease, is_held in zip(leases, held, strict=True):
            job = self._job(lease.job_id)
            is_ours = job.holds(lease) or self.ended.get(lease) is True
            assert is_held is (Held.OK if is_ours else Held.FENCED)
            if job.holds(lease):
                self.ended[lease] = True
                job.has_result = True
                job.worker = None
                job.status = "delivering" if job.is_shown else "completed"

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        leases = data.draw(st.lists(st.sampled_from(self.leases), min_size=1, unique=True))
        held = self.run(self.service.fail([Failing(lease, "It broke.") for lease in leases]))
        for lease, is_held in zip(leases, held, strict=True):
            job = self._job(lease.job_id)
            is_ours = job.holds(lease) or self.ended.get(lease) is False
            assert is_held is (Held.OK if is_ours else Held.FENCED)
            if job.holds(lease):
                self.ended[lease] = False
                job.worker, job.is_ready = None, False
                job.status = "pending" if job.attempt < job.max_attempts else "delivering"

    @rule(limit=st.integers(1, 3))
    def deliver(self, limit: int) -> None:
        taken = self.run(self.deliveries.take(limit, timedelta(hours=1)))
        for delivery in taken:
            job = self._job(delivery.job_id)
            assert delivery.is_over is (job.status in ("failed", "cancelled"))
            assert delivery.is_cancelled is (job.status == "cancelled")
            assert (delivery.outputs is not None) is job.has_result
            if delivery.is_over:
                assert job.is_to_mark
                job.is_to_mark = False
                assert self.run(self.deliveries.marked(delivery))
            elif job.has_result:
                assert self.run(self.deliveries.complete(delivery))
                job.status = "completed"
            else:
                assert self.run(self.deliveries.fail(delivery, "It broke."))
                self._fail(job)
            assert not self.run(self.deliveries.complete(delivery))

    @precondition(lambda self: any(job.status == "running" for job in self.jobs.values()))
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        running = [job for job in self.jobs.values() if job.status == "running"]
        job = data.draw(st.sampled_from(running))
        self.clock += 1
        job.until = self.clock
        self.run(
            self.database.execute(
                "UPDATE generation.job"
                "   SET lease_until = timestamptz '2020-01-01' + $2 * interval '1 second'"
                " WHERE job_id = $1",
                job.job_id,
                self.clock,
            )
        )

    @rule()
    def wait_for_the_next_attempt(self) -> None:
        self.run(
            self.database.execute(
                "UPDATE generation.job SET available_at = now() WHERE status = 'pending'"
            )
        )
        for job in self.jobs.values():
            job.is_ready = True

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        rows = self.run(
            self.database.fetch(
                "SELECT job_id, job.status, attempt, lease_token, summary.status AS outside,"
                "       acknowledged_at IS NOT NULL AS is_seen"
                "  FROM generation.job JOIN generation.summary USING (job_id)"
            )
        )
        stored = {row["job_id"]: tuple(row)[1:] for row in rows}
        assert stored == {
            job.job_id: (job.status, job.attempt, job.token, job.outside, job.is_seen)
            for job in self.jobs.values()
        }

    @invariant()
    def the_balance_is_the_sum_of_the_ledger(self) -> None:
        balance, entries = self.run(self.wallet.page(ACCOUNT, 2**62, 200))
        assert balance == self.balance == sum(entry.delta_micros for entry in entries)

    def _job(self, job_id: str) -> Job:
        return next(job for job in self.jobs.values() if job.job_id == job_id)

    def _fail(self, job: Job) -> None:
        job.status, job.worker = "failed", None
        self.balance += PRICE


def test_the_queue_does_what_its_model_does(database_server: postgres.Server) -> None:
    """GN5"""
    machine = type("Machine", (QueueMachine,), {"server": database_server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
