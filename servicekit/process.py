"""Runs one role of the suite as a process, until it is told to stop."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import uvloop

from servicekit.settings import ServiceSettings, WrongSettings, load
from servicekit.telemetry import configure_logs, logger

S = TypeVar("S", bound=ServiceSettings)

WRONG_SETTINGS = 2


def run(
    role: str,
    service: str,
    settings_type: type[S],
    running: Callable[[S], AbstractAsyncContextManager[object]],
) -> int:
    """Runs `running(settings)` until SIGTERM or SIGINT, and returns the exit code.

    `role` names the process, e.g. `generation-worker`; settings are read for `service` from the
    environment. Leaving the context manager is the drain.
    """
    try:
        settings = load(settings_type, service, os.environ)
    except WrongSettings as error:
        for line in error.lines:
            sys.stderr.write(f"gesso {role}: {line}\n")
        return WRONG_SETTINGS
    configure_logs(role, settings.log_level)
    # We never fork; grpcio's fork support costs a sixth of its speed (docs/decisions/0002).
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    uvloop.run(_until_told(role, settings, running))
    return 0


async def _until_told(
    role: str, settings: S, running: Callable[[S], AbstractAsyncContextManager[object]]
) -> None:
    log = logger(role)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with running(settings):
        log.info("up")
        await told.wait()
        log.info("draining")
    log.info("down")
