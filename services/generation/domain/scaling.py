"""How many workers the queue needs, and which of them to start or stop."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

# The jobs that one worker is meant to have, waiting or under way.
TARGET_JOBS_PER_WORKER = 2
# Who was seen so long ago is here: a worker waits for work, and works on without renewing, for 30
# seconds at most.
SEEN_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True)
class QueueStats:
    """The numbers of the whole queue.

    `blocked_pending` could be claimed if their channels had room, `delayed_pending` wait for their
    next attempt, `waiting` for a turn of their accounts; `delivering` are on the way to canvases.
    `oldest_wait` is that of the oldest claimable or blocked job, None if there is none.
    """

    claimable_pending: int = 0
    blocked_pending: int = 0
    delayed_pending: int = 0
    waiting: int = 0
    running_active: int = 0
    expired_running: int = 0
    delivering: int = 0
    oldest_wait: timedelta | None = None
    workers: int = 0

    @property
    def unfinished(self) -> int:
        """The jobs that need a worker now."""
        return self.claimable_pending + self.running_active + self.expired_running


@dataclass(frozen=True)
class Limits:
    """How many workers there may be, how much each takes, and how patient to be with idle ones."""

    min_workers: int
    max_workers: int
    jobs_per_worker: int
    idle_rounds: int


@dataclass(frozen=True)
class Decision:
    """What a round does: instances to start, one to stop, and the idle rounds in a row by now."""

    start: tuple[int, ...]
    stop: int | None
    idle_rounds: int


def target(unfinished: int, limits: Limits) -> int:
    """How many workers so many unfinished jobs need."""
    needed = -(-unfinished // limits.jobs_per_worker)
    return min(max(needed, limits.min_workers), limits.max_workers)


def decided(
    stats: QueueStats, active: Collection[int], idle_rounds: int, limits: Limits
) -> Decision:
    """What to do about the instances, of which those in `active` run.

    The gaps up to the target are filled at once. After `limits.idle_rounds` rounds in a row
    without a job that needs a worker, each further one too stops the highest instance beyond the
    target; never the first.
    """
    wanted = target(stats.unfinished, limits)
    gaps = tuple(number for number in range(1, wanted + 1) if number not in active)
    idle = 0 if stats.unfinished else idle_rounds + 1
    highest = max(active, default=0)
    is_surplus = idle >= limits.idle_rounds and highest > wanted
    return Decision(start=gaps, stop=highest if is_surplus else None, idle_rounds=idle)
