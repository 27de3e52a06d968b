"""Windows that move their cursors, and windows that are quiet: `python -m bench.presence`.

The load is here, servers are processes of their own; all share the machine's cores. An update is
delivered to a window when it arrives there itself, at most half a second after the last was sent:
one that a newer state of the same cursor replaced on the way is not, though nobody misses it.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlsplit

import psutil
import uvloop

from bench import dialects, peers
from bench.sockets import Dialect, Window, opened
from bench.suite import Bench, bench_suite
from servicekit.telemetry import configure_logs

PER_ROOM = 50
PER_SECOND = 20
SECONDS = 5
# In a small room little is sent: its slowest hundredth takes longer to see.
SECONDS_OF_FEW = 6
QUIET = 1_000
MANY_QUIET = 5_000
HEARTBEAT_SECONDS = 15.0
# Windows that are opened at once; browsers, too, come one after another.
AT_ONCE = 50

OURS = "Gesso"
PEERS: dict[str, Dialect] = {
    "tldraw": dialects.Tldraw(),
    "hocuspocus": dialects.Hocuspocus(),
    "y-websocket": dialects.YWebsocket(),
}
NAMES = {"tldraw": "tldraw sync", "hocuspocus": "Hocuspocus", "y-websocket": "y-websocket"}


@dataclass(frozen=True)
class Served:
    """A server that is up: the processes that it is, and how a window comes into a room."""

    name: str
    pids: Sequence[int]
    join: Callable[[str, int], Awaitable[Window]]


@dataclass(frozen=True)
class Moving:
    """What a run of moving windows came to."""

    delivered: float
    p50: float
    p99: float
    cpu_micros: float


@dataclass(frozen=True)
class Quiet:
    """What quiet windows hold and cost; how far apart heartbeats were beyond their interval."""

    kib_each: float
    core: float
    beat_late_ms: float | None = None


@dataclass
class Results:
    """What was measured so far, by what it is called."""

    moving: dict[str, Moving] = field(default_factory=dict)
    quiet: dict[str, Quiet] = field(default_factory=dict)


def of_room(name: str, size: int) -> str:
    """What the row of one room is called."""
    return f"{name}, a room of {size}"


def of_quiet(name: str, count: int) -> str:
    """What the row of quiet windows is called."""
    return f"{name}, {count:,} windows"


FOUR = f"{OURS}, 4 rooms of {PER_ROOM}"
EIGHT = f"{OURS}, 8 rooms of {PER_ROOM}, servers on one core"
SMALL_ROOMS = (2, 10)


async def ours(results: Results) -> None:
    """Adds the rows of our own gateway and presence.

    Those that move and those that are quiet each meet processes that have just begun.
    """
    async with bench_suite(workers=0) as bench, _ours(bench) as served:
        await _move(served, results)
        results.moving[FOUR] = await moving(served, 4, PER_ROOM)
        with _on_one_core(served.pids):
            results.moving[EIGHT] = await moving(served, 8, PER_ROOM)
    async with bench_suite(workers=0) as bench, _ours(bench) as served:
        await _be_quiet(served, results)
        results.quiet[of_quiet(OURS, MANY_QUIET)] = await quiet(served, MANY_QUIET, beats=4)


async def of_peers(results: Results) -> None:
    """Adds the rows of the peers, that are installed, likewise."""
    for peer, dialect in PEERS.items():
        async with _of_peer(peer, dialect) as served:
            await _move(served, results)
        async with _of_peer(peer, dialect) as served:
            await _be_quiet(served, results)


async def _move(served: Served, results: Results) -> None:
    for size in SMALL_ROOMS:
        results.moving[of_room(served.name, size)] = await moving(
            served, 1, size, seconds=SECONDS_OF_FEW
        )
    results.moving[of_room(served.name, PER_ROOM)] = await moving(served, 1, PER_ROOM)


async def _be_quiet(served: Served, results: Results) -> None:
    results.quiet[of_quiet(served.name, QUIET)] = await quiet(served, QUIET)


async def moving(served: Served, rooms: int, size: int, *, seconds: int = SECONDS) -> Moving:
    """So many windows in each room, each moving its cursor 20 times a second."""
    windows = await _opened(served, f"moving-{rooms}-{size}", rooms, size)
    for number, window in enumerate(windows):
        # One in ten reads when what it is told was sent, the others count it.
        window.count_anew(looks=size < PER_ROOM or number % 10 == 0)
    before = _cpu_seconds(served.pids)
    count = PER_SECOND * seconds
    # Not all at once, as people do not.
    await asyncio.gather(
        *(_moves(window, count, number / len(windows)) for number, window in enumerate(windows))
    )
    await asyncio.sleep(0.5)
    spent = _cpu_seconds(served.pids) - before
    told = sum(window.told for window in windows)
    late = sorted(lateness for window in windows for lateness in window.lateness)
    for window in windows:
        window.close()
    await asyncio.sleep(0.2)
    return Moving(
        delivered=told / (rooms * size * (size - 1) * count),
        p50=statistics.median(late),
        p99=late[int(len(late) * 0.99)],
        cpu_micros=spent / told * 1e6,
    )


async def quiet(served: Served, count: int, *, beats: int = 0) -> Quiet:
    """Windows that have told once where their cursor is, and do nothing any more."""
    before = _rss(served.pids)
    windows = await _opened(served, f"quiet-{count}", count // PER_ROOM, PER_ROOM)
    for window in windows:
        window.move()
    await asyncio.sleep(2)
    held = (_rss(served.pids) - before) / len(windows) / 1024
    for window in windows:
        window.count_anew()
    began, spent = time.monotonic(), _cpu_seconds(served.pids)
    await asyncio.sleep(max(SECONDS, (beats + 0.2) * HEARTBEAT_SECONDS))
    core = (_cpu_seconds(served.pids) - spent) / (time.monotonic() - began)
    assert all(len(window.beats) >= beats for window in windows)
    apart = [after - at for each in windows for at, after in pairwise(each.beats)]
    for window in windows:
        window.close()
    await asyncio.sleep(1)
    late = (max(apart) - HEARTBEAT_SECONDS) * 1000 if beats else None
    return Quiet(held, core, late)


def table(results: Results) -> Iterator[str]:
    """The lines of what was measured."""
    yield f"| cursors, {PER_SECOND}/s each | delivered | p50 ms | p99 ms | CPU µs a delivery |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, row in results.moving.items():
        yield (
            f"| {name} | {row.delivered:.1%} | {row.p50:.1f} | {row.p99:.1f} "
            f"| {row.cpu_micros:.1f} |"
        )
    yield ""
    yield "| quiet windows | KiB each | a core | heartbeats late, at most ms |"
    yield "| --- | ---: | ---: | ---: |"
    for name, each in results.quiet.items():
        late = "" if each.beat_late_ms is None else f"{each.beat_late_ms:.0f}"
        yield f"| {name} | {each.kib_each:.1f} | {each.core:.1%} | {late} |"


def ratios(results: Results) -> Iterator[str]:
    """The lines of what is compared with what: ours with each peer, as far as there are peers."""
    for name in NAMES.values():
        if of_room(name, PER_ROOM) not in results.moving:
            continue
        ours, theirs = (results.moving[of_room(each, PER_ROOM)] for each in (OURS, name))
        ratio = ours.cpu_micros / theirs.cpu_micros
        yield _ratio(of_room(OURS, PER_ROOM), name, ratio, "≤ 0.33 of the best's CPU")
        for size in SMALL_ROOMS:
            ours, theirs = (results.moving[of_room(each, size)] for each in (OURS, name))
            yield _ratio(of_room(OURS, size), name, ours.p99 / theirs.p99, "≤ 0.5 of the p99")
        still, beside = (results.quiet[of_quiet(each, QUIET)] for each in (OURS, name))
        ratio = still.kib_each / beside.kib_each
        yield _ratio(of_quiet(OURS, QUIET), name, ratio, "of the memory")


def _ratio(this: str, against: str, ratio: float, wanted: str) -> str:
    return f"| {this} | {against} | {ratio:.2f} | {wanted} |"


async def main() -> None:
    """Prints what each load came to."""
    configure_logs("bench", "warning")
    results = Results()
    await ours(results)
    await peers.install()
    await of_peers(results)
    print("\n".join((*table(results), "", *ratios(results))))


async def _moves(window: Window, count: int, phase: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + phase / PER_SECOND
    for _ in range(count):
        await asyncio.sleep(max(0, due - loop.time()))
        window.move()
        due += 1 / PER_SECOND


async def _opened(served: Served, name: str, rooms: int, size: int) -> list[Window]:
    wanted = [(f"{name}-{room}", number) for room in range(rooms) for number in range(size)]
    windows: list[Window] = []
    for start in range(0, len(wanted), AT_ONCE):
        joins = (served.join(room, number) for room, number in wanted[start : start + AT_ONCE])
        windows += await asyncio.gather(*joins)
    await asyncio.sleep(1)
    return windows


@asynccontextmanager
async def _of_peer(peer: str, dialect: Dialect) -> AsyncIterator[Served]:
    async with peers.serving_presence(peer) as (pid, port):

        def join(room: str, number: int) -> Awaitable[Window]:
            return opened(dialect, ("127.0.0.1", port), room, number)

        yield Served(NAMES[peer], (pid,), join)


@asynccontextmanager
async def _ours(bench: Bench) -> AsyncIterator[Served]:
    """Our gateway and presence. A room is a canvas of an account of its own."""
    cookies: dict[str, asyncio.Future[str]] = {}
    parts = urlsplit(bench.url)
    assert parts.hostname is not None
    assert parts.port is not None
    address = (parts.hostname, parts.port)

    async def join(room: str, number: int) -> Window:
        if room not in cookies:
            cookies[room] = asyncio.ensure_future(_canvas(bench, room))
        headers = f"Origin: {bench.url}\r\nCookie: {await cookies[room]}\r\n"
        return await opened(dialects.Gesso(), address, room, number, headers)

    yield Served(OURS, [bench.pids[name] for name in ("gateway", "presence")], join)


async def _canvas(bench: Bench, canvas_id: str) -> str:
    """The cookie of a new account with a canvas."""
    browser = await bench.browser()
    await browser.change(canvas_id, {"type": "create_canvas", "canvas": {"title": "A room"}})
    await browser.close()
    return browser.cookie


@contextmanager
def _on_one_core(pids: Sequence[int]) -> Iterator[None]:
    """Has processes share one core, and us have the others."""
    every = os.sched_getaffinity(0)
    first = {min(every)}
    _place(pids, first)
    os.sched_setaffinity(0, every - first)
    try:
        yield
    finally:
        _place(pids, every)
        os.sched_setaffinity(0, every)


def _place(pids: Sequence[int], cores: set[int]) -> None:
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            os.sched_setaffinity(thread.id, cores)


def _cpu_seconds(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def _rss(pids: Sequence[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


if __name__ == "__main__":
    uvloop.run(main())
