"""`gesso doctor`."""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import httpx
from packaging.requirements import Requirement

from servicekit.errors import Failure
from servicekit.migrations import current
from servicekit.settings import WrongSettings
from suite import postgres
from suite.commands.settings import all_variables
from suite.constellation import HOST, Stores, Wanted, constellation, why
from suite.schemas import SCHEMAS
from suite.state import StateFile

UNWELL = 1
OLDEST_PYTHON = (3, 11)
NEEDED_BYTES = 2 * 2**30
ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """What was looked at; `mend` says what to do if it is not well."""

    what: str
    mend: str | None = None


def run_doctor(data_folder: Path, port: int) -> int:
    """Checks the set-up, prints what it found, and returns 1 if something is not well."""
    runs = StateFile(data_folder).read() is not None
    checks: list[Callable[[], Finding]] = [
        _python,
        _packages,
        lambda: _data_folder(data_folder),
        lambda: _disk(data_folder),
        _postgres_programs,
        lambda: _settings(data_folder, port),
        _unknown_variables,
        (lambda: _suite(port)) if runs else (lambda: _port(port)),
    ]
    if os.environ.get("GESSO_DATABASE_URL"):
        checks.append(_migrations)
    findings = [check() for check in checks]
    for finding in findings:
        mark = "ok " if finding.mend is None else "NOT"
        sys.stdout.write(f"{mark}  {finding.what}\n")
        if finding.mend is not None:
            sys.stdout.write(f"     {finding.mend}\n")
    return UNWELL if any(finding.mend for finding in findings) else 0


def _python() -> Finding:
    found = sys.version_info[:3]
    mend = "Install Python 3.11 or newer, then: make clean setup PYTHON=python3.12"
    return Finding(f"Python {'.'.join(map(str, found))}", None if found >= OLDEST_PYTHON else mend)


def _packages() -> Finding:
    missing = sorted(_missing())
    if missing:
        return Finding(f"packages are missing: {', '.join(missing)}", "Run: make setup")
    return Finding("every package is installed")


def _missing() -> Iterator[str]:
    for line in requires("gesso") or []:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": "local"}):
            continue
        try:
            if not needed.specifier.contains(version(needed.name), prereleases=True):
                yield f"{needed.name} {needed.specifier}"
        except PackageNotFoundError:
            yield needed.name


def _data_folder(folder: Path) -> Finding:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding(f"data folder {folder}")
    return Finding(f"data folder {folder} cannot be written", "Name another one with --data-dir")


def _disk(folder: Path) -> Finding:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    what = f"{free / 2**30:.0f} GiB free on the disk of the data folder"
    return Finding(what, None if free >= NEEDED_BYTES else "Free some space: 2 GiB at least")


def _postgres_programs() -> Finding:
    if os.environ.get("GESSO_DATABASE_URL"):
        return Finding("PostgreSQL is the one that GESSO_DATABASE_URL names")
    try:
        return Finding(f"PostgreSQL from the wheel: {postgres.program_version()}")
    except postgres.NoDatabase as error:
        return Finding("there is no PostgreSQL", str(error))


def _settings(data_folder: Path, port: int) -> Finding:
    nowhere = Stores(database_url="postgresql://nowhere", redis_url="redis://nowhere")
    wanted = Wanted(data_folder, port=port, workers=None, gateways=1, presences=1)
    environ = {"GESSO_INTERNAL_TOKENS": "looked-at-and-forgotten", **os.environ}
    try:
        constellation(wanted, nowhere, environ, control=data_folder / "control")
    except WrongSettings as error:
        return Finding("some settings are wrong", "\n     ".join(error.lines))
    return Finding("every setting can be used")


def _unknown_variables() -> Finding:
    known = {variable.name for variable in all_variables()}
    shared = {variable.name for variable in all_variables() if variable.shared}
    unknown = [
        name
        for name in sorted(os.environ)
        if name.startswith("GESSO_")
        and name not in known
        # A shared setting may be given for one service alone.
        and not any(name.endswith(one.removeprefix("GESSO")) for one in shared)
    ]
    if unknown:
        return Finding(
            f"no process reads {', '.join(unknown)}", "Look the names up with: gesso settings"
        )
    return Finding("every GESSO_ variable is one that a process reads")


def _port(port: int) -> Finding:
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        return Finding(f"port {port}: {why(error)}", "Name another one: gesso up --port 9000")
    return Finding(f"port {port} is free")


def _suite(port: int) -> Finding:
    try:
        answer = httpx.get(f"http://{HOST}:{port}/readyz", timeout=ANSWER_SECONDS)
        checks = answer.json()["checks"]
    except (httpx.HTTPError, ValueError, KeyError):
        return Finding(
            f"the suite on port {port} does not answer", "Read: gesso logs gateway; or name --port"
        )
    wrong = sorted(f"{name}: {result}" for name, result in checks.items() if result != "ok")
    if wrong:
        return Finding(f"not all of the suite works. {' '.join(wrong)}", "Read: gesso logs")
    return Finding("the suite runs, every service and store answers")


def _migrations() -> Finding:
    try:
        found = asyncio.run(current(os.environ["GESSO_DATABASE_URL"], SCHEMAS))
    except Failure as failure:
        return Finding("the database does not answer", failure.detail)
    behind = [schema.name for schema in SCHEMAS if found[schema.name] != schema.head()]
    if behind:
        return Finding(f"schemas are behind: {', '.join(behind)}", "Run: gesso db migrate")
    return Finding("every schema is at its newest revision")
