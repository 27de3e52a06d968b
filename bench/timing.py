"""Runs work many times over and says how long it took."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Work = Callable[[int, int], Awaitable[None]]

WARM_UP = 20


@dataclass(frozen=True)
class Timing:
    """How long a piece of work took, many times over; milliseconds."""

    per_second: float
    p50: float
    p99: float

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s · p50 {self.p50:.2f} ms · p99 {self.p99:.2f} ms"


async def timed(work: Work, *, workers: int, each: int, warm_up: int = WARM_UP) -> Timing:
    """Times `work(worker, number)`: `workers` at once, each `each` times, one after another."""
    await asyncio.gather(*(_repeat(work, worker, range(-warm_up, 0)) for worker in range(workers)))
    began = time.perf_counter()
    lists = await asyncio.gather(*(_repeat(work, worker, range(each)) for worker in range(workers)))
    seconds = time.perf_counter() - began
    return summary([lasted for lasts in lists for lasted in lasts], seconds)


def summary(seconds_each: list[float], seconds_all: float) -> Timing:
    """What a list of durations says."""
    ordered = sorted(seconds_each)
    return Timing(
        per_second=len(ordered) / seconds_all,
        p50=statistics.median(ordered) * 1000,
        p99=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
    )


async def _repeat(work: Work, worker: int, numbers: range) -> list[float]:
    lasts: list[float] = []
    for number in numbers:
        began = time.perf_counter()
        await work(worker, number)
        lasts.append(time.perf_counter() - began)
    return lasts
