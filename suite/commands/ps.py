"""`gesso ps`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from suite.state import ProcessState, StateFile

NOTHING_RUNS = 1


@dataclass(frozen=True)
class Row:
    """A process with the memory that it and its children hold; shared pages count once."""

    process: ProcessState
    rss_bytes: int
    processes: int


def run_ps(data_folder: Path, *, as_json: bool) -> int:
    """Lists the processes of the suite on a data folder, and returns the exit code."""
    found = StateFile(data_folder).read()
    if found is None:
        sys.stderr.write(f"gesso ps: nothing runs on {data_folder}; start it with gesso up\n")
        return NOTHING_RUNS
    rows = [_measured(process) for process in found]
    if as_json:
        sys.stdout.write(json.dumps([_json(row) for row in rows]) + "\n")
    else:
        _print(rows)
    return 0


def _measured(process: ProcessState) -> Row:
    try:
        top = psutil.Process(process.pid) if process.pid else None
        family = [top, *top.children(recursive=True)] if top else []
    except psutil.NoSuchProcess:
        family = []
    held = [_held_bytes(member) for member in family]
    return Row(process, rss_bytes=sum(held), processes=len(held))


def _held_bytes(process: psutil.Process) -> int:
    """Resident bytes; the share of pages that several processes hold, where the kernel says it."""
    try:
        return int(getattr(process.memory_full_info(), "pss", 0)) or int(process.memory_info().rss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _json(row: Row) -> dict[str, object]:
    return {**asdict(row.process), "rssBytes": row.rss_bytes}


def _print(rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("process")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("restarts", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("address")
    for row in rows:
        process = row.process
        table.add_row(
            process.name,
            process.state,
            str(process.pid or ""),
            str(process.restarts),
            f"{row.rss_bytes / 2**20:.0f} MiB",
            process.address,
        )
    console = Console(highlight=False)
    console.print(table)
    total = sum(row.rss_bytes for row in rows)
    count = sum(row.processes for row in rows)
    console.print(f"{count} processes hold {total / 2**20:.0f} MiB")
