"""How many workers the queue needs, decided without one, and its numbers for many who ask."""

import asyncio
from datetime import timedelta

import pytest
from externalscaler.externalscaler_pb2 import ScaledObjectRef
from hypothesis import given
from hypothesis import strategies as st

from servicekit.errors import Unavailable
from servicekit.settings import load
from services.generation import stats as stats_module
from services.generation.domain.scaling import Decision, Limits, QueueStats, decided, target
from services.generation.scaler_rpc import ScalerRpc
from services.generation.settings import Settings
from services.generation.stats import Stats
from services.generation.wakeups import Wakeups

LIMITS = Limits(min_workers=1, max_workers=8, jobs_per_worker=2, idle_rounds=6)
IDLE = QueueStats()
ENVIRONMENT = {
    "GESSO_INTERNAL_TOKENS": "a-token-of-the-tests",
    "GESSO_DATABASE_URL": "postgresql://nowhere/gesso",
    "GESSO_CANVAS_ADDRESS": "canvas:50051",
    "GESSO_GENERATION_LISTEN": "127.0.0.1:0",
}


@pytest.mark.parametrize(
    ("unfinished", "workers"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (16, 8), (900, 8)]
)
def test_the_target_is_the_jobs_by_what_a_worker_takes_within_the_limits(
    unfinished: int, workers: int
) -> None:
    """GN43"""
    assert target(unfinished, LIMITS) == workers


def test_what_waits_runs_or_expired_needs_workers_and_nothing_else_does() -> None:
    """GN43"""
    stats = QueueStats(
        claimable_pending=2,
        running_active=2,
        expired_running=2,
        blocked_pending=90,
        delayed_pending=90,
        waiting=90,
        delivering=90,
        workers=9,
    )

    assert decided(stats, {1}, 0, LIMITS) == Decision(start=(2, 3), stop=None, idle_rounds=0)


def test_gaps_are_filled_at_once_and_what_runs_beyond_the_target_stays() -> None:
    """GN43"""
    stats = QueueStats(running_active=5)

    assert decided(stats, {2, 7}, 5, LIMITS) == Decision(start=(1, 3), stop=None, idle_rounds=0)


def test_idle_workers_are_stopped_one_a_round_the_highest_first_and_never_the_first() -> None:
    """GN43"""
    active, idle, stopped = {1, 2, 3, 5}, 0, []
    for _ in range(12):
        decision = decided(IDLE, active, idle, LIMITS)
        idle = decision.idle_rounds
        active.discard(decision.stop or 0)
        stopped.append(decision.stop)

    assert stopped == [None] * 5 + [5, 3, 2] + [None] * 4
    assert active == {1}


def test_one_job_begins_the_idle_rounds_anew() -> None:
    """GN43"""
    before = decided(IDLE, {1, 2}, 4, LIMITS)
    between = decided(QueueStats(expired_running=1), {1, 2}, before.idle_rounds, LIMITS)
    after = decided(IDLE, {1, 2}, between.idle_rounds, LIMITS)

    assert (before.idle_rounds, between.idle_rounds, after.idle_rounds) == (5, 0, 1)
    assert after.stop is None


@given(
    unfinished=st.integers(0, 200),
    active=st.sets(st.integers(1, 12)),
    idle_rounds=st.integers(0, 20),
    limits=st.builds(
        Limits,
        min_workers=st.integers(1, 4),
        max_workers=st.integers(4, 12),
        jobs_per_worker=st.integers(1, 9),
        idle_rounds=st.integers(1, 9),
    ),
)
def test_no_decision_leaves_the_limits(
    unfinished: int, active: set[int], idle_rounds: int, limits: Limits
) -> None:
    """GN43"""
    stats = QueueStats(claimable_pending=unfinished)
    decision = decided(stats, active, idle_rounds, limits)

    after = (active | set(decision.start)) - {decision.stop}
    assert not set(decision.start) & active
    assert all(number <= limits.max_workers for number in decision.start)
    assert set(range(1, limits.min_workers + 1)) <= after
    if decision.stop is not None:
        assert not unfinished
        assert decision.stop == max(active)
        assert decision.stop > limits.min_workers


class Counting:
    """A store whose counts wait until they are let."""

    def __init__(self) -> None:
        self.begun = 0
        self.let = asyncio.Event()
        self.failure: Unavailable | None = None

    async def count(self, _seen_within: timedelta, _channels: object) -> QueueStats:
        self.begun += 1
        number = self.begun
        await self.let.wait()
        if self.failure:
            raise self.failure
        return QueueStats(workers=number)


async def test_many_who_ask_share_one_query_and_its_answer_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GN40"""
    store = Counting()
    stats = Stats(store, {})  # type: ignore[arg-type]
    asked = [asyncio.create_task(stats.recent()) for _ in range(50)]
    store.let.set()
    together = await asyncio.gather(*asked)
    soon = await stats.recent()
    fresh = await stats.now()
    after = await stats.recent()
    monkeypatch.setattr(stats_module, "MAX_AGE_SECONDS", 0.0)
    late = await stats.recent()

    assert {each.workers for each in [*together, soon]} == {1}
    assert (fresh.workers, after.workers, late.workers) == (2, 2, 3)


async def test_numbers_that_cannot_be_read_are_not_told() -> None:
    """GN40"""
    store = Counting()
    stats = Stats(store, {})  # type: ignore[arg-type]
    store.let.set()
    store.failure = Unavailable("The database does not answer.")
    with pytest.raises(Unavailable):
        await stats.recent()
    store.failure = None

    assert (await stats.recent()).workers == 2


async def test_a_stream_of_keda_says_nothing_while_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GN42"""
    store = Counting()
    store.let.set()
    store.failure = Unavailable("The database does not answer.")
    draining = asyncio.Event()
    scaler = ScalerRpc(
        Stats(store, {}),  # type: ignore[arg-type]
        Wakeups(),
        load(Settings, "generation", ENVIRONMENT),
        draining=draining,
    )
    monkeypatch.setattr("services.generation.scaler_rpc.LOOK_SECONDS", 0.001)
    stream = scaler.StreamIsActive(ScaledObjectRef(), None)  # type: ignore[arg-type]
    told = asyncio.ensure_future(anext(stream))
    async with asyncio.timeout(15):
        while store.begun < 3:
            await asyncio.sleep(0)
        is_silent = not told.done()
        store.failure = None
        answer = await told
        draining.set()
        rest = [each async for each in stream]

    assert is_silent
    assert answer.result is False
    assert rest == []
