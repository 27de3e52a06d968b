"""Measures the hot paths on this machine and prints a table: `make bench`."""

import os
import platform
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import uvloop

from bench import echo, edits, jobs, peers, presence, reads, streams
from bench.suite import Bench, bench_suite
from bench.timing import Timing
from servicekit.telemetry import configure_logs

ROUNDS = 3
CROWD = 50

Row = tuple[str, Callable[[Bench], Awaitable[Timing]]]

FLOOR_OF_8 = "edit, plain SQL (the floor), 8 canvases"
FLOOR_OF_ONE = "edit, plain SQL (the floor), 8 writers on one canvas"
SERVICE_OF_8 = "edit, at the service, 8 canvases"
SERVICE_OF_CROWD = f"edit, at the service, {CROWD} writers on one canvas"
SMALL = "edit, at the service, a canvas of 10 nodes"
LARGE = "edit, at the service, a canvas of 5,000 nodes"
STREAM_OF_CROWD = f"edit, at the service over a stream, {CROWD} writers on one canvas"
GATEWAY_OF_CROWD = f"edit, through the gateway, {CROWD} windows on one canvas"
ECHO = f"echo through two such hops, {CROWD} browsers"
WHOLE = "whole read of 1,000 nodes, at the service"
WHOLE_PLAIN = "whole read of 1,000 nodes, plain SQL"
WHOLE_BARE = "whole read of 1,000 nodes, plain SQL behind a bare gRPC handler"
TLDRAW = f"edit, tldraw sync on SQLite (WAL), {CROWD} writers on one canvas"
HOCUSPOCUS = f"edit, Hocuspocus in memory, {CROWD} writers on one canvas"

WITH_WORKERS: list[Row] = [
    ("edit, plain SQL (the floor), 1 at a time", lambda bench: edits.floor(bench, 1)),
    ("edit, at the service, 1 at a time", lambda bench: edits.at_the_service(bench, 1)),
    ("edit, through the gateway, 1 at a time", lambda bench: edits.through_gateway(bench, 1)),
    (SMALL, lambda bench: edits.at_the_service(bench, 1, size=10)),
    (LARGE, lambda bench: edits.at_the_service(bench, 1, size=5_000)),
    (FLOOR_OF_8, lambda bench: edits.floor(bench, 8)),
    (SERVICE_OF_8, lambda bench: edits.at_the_service(bench, 8)),
    ("edit, through the gateway, 8 canvases", lambda bench: edits.through_gateway(bench, 8)),
    (FLOOR_OF_ONE, lambda bench: edits.floor(bench, 8, one_canvas=True)),
    (
        "edit, at the service, 8 writers on one canvas",
        lambda bench: edits.at_the_service(bench, 8, one_canvas=True),
    ),
    (SERVICE_OF_CROWD, lambda bench: edits.at_the_service(bench, CROWD, one_canvas=True)),
    (STREAM_OF_CROWD, lambda bench: edits.over_a_stream(bench, CROWD)),
    (GATEWAY_OF_CROWD, lambda bench: edits.through_gateway(bench, CROWD, one_canvas=True)),
    (ECHO, lambda _: echo.through_two_hops(CROWD)),
    (WHOLE, reads.whole_at_the_service),
    (WHOLE_PLAIN, reads.whole_plain),
    (WHOLE_BARE, reads.whole_behind_a_bare_handler),
    ("changes of 3 revisions, at the service", reads.changes),
    ("text, POST to first delta", streams.first_delta),
    ("PATCH in one window to invalidate in another", streams.invalidation),
]
WITHOUT_WORKERS: list[Row] = [("job, no-op provider, enqueue to canvas", jobs.end_to_end)]
# The same load as ours at the service, without a suite beside it.
PEERS: list[tuple[str, Callable[[], Awaitable[Timing]]]] = [
    (TLDRAW, lambda: peers.tldraw(CROWD)),
    (HOCUSPOCUS, lambda: peers.hocuspocus(CROWD)),
]
# What is compared with what, by rate or by median time, and what we want of it.
RATIOS: list[tuple[str, str, Callable[[Timing], float], str]] = [
    (LARGE, SMALL, lambda timing: timing.p50, "≤ 1.15 of the time"),
    (SERVICE_OF_8, FLOOR_OF_8, lambda timing: timing.per_second, "≥ 0.5 of the rate"),
    (SERVICE_OF_CROWD, FLOOR_OF_ONE, lambda timing: timing.per_second, "≥ 4 times the rate"),
    (SERVICE_OF_CROWD, TLDRAW, lambda timing: timing.per_second, "≥ 2 times the rate"),
    (SERVICE_OF_CROWD, HOCUSPOCUS, lambda timing: timing.per_second, "the rate"),
    (STREAM_OF_CROWD, FLOOR_OF_ONE, lambda timing: timing.per_second, "≥ 4 times the rate"),
    (STREAM_OF_CROWD, TLDRAW, lambda timing: timing.per_second, "≥ 2 times the rate"),
    (STREAM_OF_CROWD, HOCUSPOCUS, lambda timing: timing.per_second, "the rate"),
    (GATEWAY_OF_CROWD, ECHO, lambda timing: timing.per_second, "≥ 0.6 of the rate"),
    (WHOLE, WHOLE_PLAIN, lambda timing: timing.p50, "≤ 1.5 of the time"),
    (WHOLE, WHOLE_BARE, lambda timing: timing.p50, "of the time"),
]


async def main() -> None:
    """Runs every row several times in turn, and prints the median round of each."""
    configure_logs("bench", "warning")
    rounds: dict[str, list[Timing]] = {}
    memory: list[str] = []
    windows = presence.Results()
    for workers, rows in ((1, WITH_WORKERS), (0, WITHOUT_WORKERS)):
        async with bench_suite(workers=workers) as bench:
            for _ in range(ROUNDS):
                for name, measure in rows:
                    rounds.setdefault(name, []).append(await measure(bench))
            if workers:
                memory.append(await edits.memory(bench))
    await presence.ours(windows)
    no_peers = await _measure_peers(rounds, windows)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, client included, "
        f"Python {platform.python_version()}; median of {ROUNDS} rounds in turn, "
        "noise = (most - least) / median of the rate\n"
    )
    medians = {name: _median(timings) for name, timings in rounds.items()}
    print("| what | per second | p50 ms | p99 ms | noise |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, timing in medians.items():
        rates = [each.per_second for each in rounds[name]]
        noise = (max(rates) - min(rates)) / timing.per_second
        print(
            f"| {name} | {timing.per_second:,.0f} | {timing.p50:.2f} | {timing.p99:.2f} "
            f"| {noise:.0%} |"
        )
    if no_peers:
        for name, _ in PEERS:
            print(f"| {name} | not measured: {no_peers} | | | |")
    print("\n" + "\n".join(presence.table(windows)))
    print("\n| this | against this | ratio | wanted |")
    print("| --- | --- | ---: | --- |")
    for ours, theirs, figure, wanted in RATIOS:
        if theirs in medians:
            ratio = figure(medians[ours]) / figure(medians[theirs])
            print(f"| {ours} | {theirs} | {ratio:.2f} | {wanted} |")
    print("\n".join(presence.ratios(windows)))
    print("\n" + "\n".join(memory))


def _median(timings: list[Timing]) -> Timing:
    """The round of the median rate."""
    return sorted(timings, key=lambda timing: timing.per_second)[len(timings) // 2]


async def _measure_peers(
    rounds: dict[str, list[Timing]], windows: presence.Results
) -> peers.NotInstalled | None:
    """Adds the rounds of the peers, or says why there are none."""
    try:
        await peers.install()
    except peers.NotInstalled as error:
        return error
    for _ in range(ROUNDS):
        for name, measure in PEERS:
            rounds.setdefault(name, []).append(await measure())
    await presence.of_peers(windows)
    return None


if __name__ == "__main__":
    uvloop.run(main())
