"""The numbers of the queue as Prometheus gauges. Every instance tells those of the whole queue."""

import asyncio
import math

from prometheus_client import CollectorRegistry, Gauge

from servicekit.errors import Failure
from services.generation.domain.scaling import QueueStats
from services.generation.stats import Stats

LOOK_SECONDS = 5.0

_STATES = (
    "claimable_pending",
    "blocked_pending",
    "delayed_pending",
    "waiting",
    "running_active",
    "expired_running",
    "delivering",
)


class Gauges:
    """The gauges of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge(
            "gesso_generation_jobs",
            "Jobs of the whole queue that are not over, by where they are.",
            ["state"],
            registry=registry,
        )
        self._oldest_wait = Gauge(
            "gesso_generation_oldest_wait_seconds",
            "How long the oldest job that could be claimed, or is blocked, has waited; else 0.",
            registry=registry,
        )
        self._workers = Gauge(
            "gesso_generation_workers",
            "Workers that were seen in the last minute.",
            registry=registry,
        )
        self._show(None)

    async def show_forever(self, stats: Stats) -> None:
        """Shows the numbers every few seconds; none of them while they cannot be told."""
        while True:
            try:
                self._show(await stats.recent())
            except Failure:
                self._show(None)
            await asyncio.sleep(LOOK_SECONDS)

    def _show(self, stats: QueueStats | None) -> None:
        for state in _STATES:
            self._jobs.labels(state).set(math.nan if stats is None else getattr(stats, state))
        if stats is None:
            self._oldest_wait.set(math.nan)
            self._workers.set(math.nan)
            return
        wait = stats.oldest_wait
        self._oldest_wait.set(wait.total_seconds() if wait is not None else 0)
        self._workers.set(stats.workers)
