"""Measures the hot paths on this machine and prints a table: `make bench`."""

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from bench import edits, jobs, peers, streams
from bench.suite import Bench, bench_suite
from bench.timing import Timing
from servicekit.telemetry import configure_logs

ROUNDS = 3
CROWD = 50

Row = tuple[str, Callable[[Bench], Awaitable[Timing]]]

WITH_WORKERS: list[Row] = [
    ("edit, plain SQL (the floor), 1 at a time", lambda bench: edits.floor(bench, 1)),
    ("edit, at the service, 1 at a time", lambda bench: edits.at_the_service(bench, 1)),
    ("edit, through the gateway, 1 at a time", lambda bench: edits.through_gateway(bench, 1)),
    ("edit, plain SQL (the floor), 8 canvases", lambda bench: edits.floor(bench, 8)),
    ("edit, at the service, 8 canvases", lambda bench: edits.at_the_service(bench, 8)),
    ("edit, through the gateway, 8 canvases", lambda bench: edits.through_gateway(bench, 8)),
    (
        "edit, at the service, 8 writers on one canvas",
        lambda bench: edits.at_the_service(bench, 8, one_canvas=True),
    ),
    (
        f"edit, at the service, {CROWD} writers on one canvas",
        lambda bench: edits.at_the_service(bench, CROWD, one_canvas=True),
    ),
    ("text, POST to first delta", streams.first_delta),
    ("cursor, window to window", streams.cursor),
]
WITHOUT_WORKERS: list[Row] = [("job, no-op provider, enqueue to canvas", jobs.end_to_end)]
# The same load as ours at the service, without a suite beside it.
PEERS: list[tuple[str, Callable[[], Awaitable[Timing]]]] = [
    (
        f"edit, tldraw sync on SQLite (WAL), {CROWD} writers on one canvas",
        lambda: peers.tldraw(CROWD),
    ),
    (
        f"edit, Hocuspocus in memory, {CROWD} writers on one canvas",
        lambda: peers.hocuspocus(CROWD),
    ),
]


async def main() -> None:
    """Runs every row several times in turn, and prints the median round of each."""
    configure_logs("bench", "warning")
    rounds: dict[str, list[Timing]] = {}
    for workers, rows in ((1, WITH_WORKERS), (0, WITHOUT_WORKERS)):
        async with bench_suite(workers=workers) as bench:
            for _ in range(ROUNDS):
                for name, measure in rows:
                    rounds.setdefault(name, []).append(await measure(bench))
    no_peers = await _measure_peers(rounds)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, client included, "
        f"Python {platform.python_version()}; median of {ROUNDS} rounds in turn, "
        "noise = (most - least) / median of the rate\n"
    )
    print("| what | per second | p50 ms | p99 ms | noise |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, timings in rounds.items():
        ordered = sorted(timings, key=lambda timing: timing.per_second)
        middle = ordered[len(ordered) // 2]
        noise = (ordered[-1].per_second - ordered[0].per_second) / middle.per_second
        print(
            f"| {name} | {middle.per_second:,.0f} | {middle.p50:.2f} | {middle.p99:.2f} "
            f"| {noise:.0%} |"
        )
    if no_peers:
        for name, _ in PEERS:
            print(f"| {name} | not measured: {no_peers} | | | |")


async def _measure_peers(rounds: dict[str, list[Timing]]) -> peers.NotInstalled | None:
    """Adds the rounds of the peers, or says why there are none."""
    try:
        await peers.install()
    except peers.NotInstalled as error:
        return error
    for _ in range(ROUNDS):
        for name, measure in PEERS:
            rounds.setdefault(name, []).append(await measure())
    return None


if __name__ == "__main__":
    asyncio.run(main())
