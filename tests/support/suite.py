"""The suite as a person runs it: `gesso up` as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from servicekit.settings import WrongSettings
from suite.constellation import check_port, free_port

GESSO = [sys.executable, "-m", "suite"]
PATIENCE_SECONDS = 60
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GESSO_")}


@dataclass
class Up:
    """A `gesso up` that is running."""

    process: subprocess.Popen[str]
    data: Path
    url: str

    def ps(self) -> list[dict[str, Any]]:
        done = gesso("ps", "--data-dir", str(self.data), "--json")
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def is_back(self, victim: dict[str, Any]) -> bool:
        now = next(each for each in self.ps() if each["name"] == victim["name"])
        return bool(now["state"] == "running" and now["restarts"] > victim["restarts"])

    def is_well(self) -> bool:
        return is_well(self.url)


def is_well(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/readyz", timeout=5).json()["status"] == "ok")
    except httpx.HTTPError:
        return False


def gesso(
    *arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GESSO, *arguments],
        cwd=cwd,
        env={**ENVIRONMENT, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def start(
    data: Path, *options: str, gateways: int = 1, environ: dict[str, str] | None = None
) -> Up:
    port = _free_ports(gateways)
    process = subprocess.Popen(
        [
            *GESSO,
            "up",
            "--port",
            str(port),
            "--data-dir",
            str(data),
            "--gateways",
            str(gateways),
            *options,
        ],
        env={**ENVIRONMENT, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("gesso is ready at "):
            return Up(process, data, line.split()[-1])
    process.stdout.close()
    process.wait()
    raise AssertionError("".join(said))


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    while True:
        first = free_port()
        with suppress(WrongSettings):
            for port in range(first, first + count):
                check_port(port)
            return first


def stop(up: Up) -> list[psutil.Process]:
    """Stops it as Ctrl-C does; the processes of it that are still there."""
    family = psutil.Process(up.process.pid).children(recursive=True)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(PATIENCE_SECONDS) == 0
    if up.process.stdout is not None:
        up.process.stdout.close()
    return [process for process in family if process.is_running()]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
