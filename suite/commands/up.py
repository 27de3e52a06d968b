"""`gesso up`."""

import asyncio
import os
import signal
import sys
import webbrowser
from contextlib import suppress

from rich.console import Console
from rich.table import Table

from suite.constellation import Wanted
from suite.up import CannotStart, Running, running

CANNOT_START = 1


def run_up(wanted: Wanted, *, open_browser: bool) -> int:
    """Runs the suite until SIGINT or SIGTERM, and returns the exit code."""
    try:
        asyncio.run(_until_told(wanted, open_browser=open_browser))
    except CannotStart as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"gesso up: {line}\n")
        return CANNOT_START
    return 0


async def _until_told(wanted: Wanted, *, open_browser: bool) -> None:
    up = asyncio.create_task(_up(wanted, open_browser=open_browser))
    told = asyncio.Event()

    def stop() -> None:
        # Once: stopping takes seconds, and a second Ctrl-C must not leave something behind.
        if not told.is_set():
            told.set()
            up.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await up


async def _up(wanted: Wanted, *, open_browser: bool) -> None:
    console = Console(highlight=False)
    status = console.status("starting")
    status.start()
    try:
        async with running(
            wanted, os.environ, progress=lambda what: status.update(f"starting {what}")
        ) as suite:
            status.stop()
            console.print(_table(suite))
            console.print(f"gesso is ready at {suite.url}")
            if open_browser:
                webbrowser.open(suite.url)
            await asyncio.Event().wait()
    finally:
        status.stop()


def _table(suite: Running) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("process", "state", "pid", "address"):
        table.add_column(column)
    for process in suite.processes():
        table.add_row(process.name, process.state, str(process.pid or ""), process.address)
    return table
