"""`gesso logs`."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

NO_LOGS = 1
LOOK_AGAIN_SECONDS = 0.3


@dataclass
class Log:
    """The log of one process, read up to a place."""

    name: str
    path: Path
    file: TextIO

    def lines(self) -> Iterator[str]:
        """The lines that came since the last look; a log that was turned over is read anew."""
        yield from self.file
        try:
            turned_over = self.path.stat().st_ino != os.fstat(self.file.fileno()).st_ino
        except FileNotFoundError:
            return
        if turned_over:
            self.file.close()
            self.file = self.path.open(encoding="utf-8", errors="replace")
            yield from self.file


def run_logs(
    data_folder: Path, names: Sequence[str], *, follow: bool, lines: int, raw: bool
) -> int:
    """Prints the last lines of the logs, and what comes; returns the exit code."""
    folder = data_folder / "logs"
    known = {path.stem: path for path in sorted(folder.glob("*.log"))}
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        what = f"there is no log of {unknown[0]}" if unknown else "there are no logs"
        sys.stderr.write(
            f"gesso logs: {what} in {folder}; there are: {', '.join(known) or 'none'}\n"
        )
        return NO_LOGS
    logs = [
        Log(name, path, path.open(encoding="utf-8", errors="replace"))
        for name, path in known.items()
        if not names or name in names
    ]
    recent = [(log, line) for log in logs for line in deque(log.lines(), maxlen=lines)]
    for log, line in sorted(recent, key=lambda found: _time(found[1])):
        sys.stdout.write(line if raw else _readable(log.name, line))
    try:
        while follow:
            for log in logs:
                for line in log.lines():
                    sys.stdout.write(line if raw else _readable(log.name, line))
            sys.stdout.flush()
            time.sleep(LOOK_AGAIN_SECONDS)
    except KeyboardInterrupt:
        pass
    return 0


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _time(line: str) -> str:
    """What lines are sorted by; lines of the stores begin with their time."""
    found = _parsed(line)
    return str(found.get("timestamp", "")) if found else line[:23].replace(" ", "T")


def _readable(name: str, line: str) -> str:
    found = _parsed(line)
    if found is None:
        return f"{name:<20} {line}"
    when = str(found.pop("timestamp", ""))[11:23]
    level = found.pop("level", "")
    event = found.pop("event", "")
    found.pop("service", None)
    trace = found.pop("exception", None)
    facts = " ".join(f"{key}={value}" for key, value in found.items() if value not in (None, ""))
    tail = f"\n{json.dumps(trace, indent=2)}" if trace else ""
    return f"{when} {name:<20} {level:<7} {event} {facts}{tail}\n"
