"""Runs one role of the suite as a process, until it is told to stop."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import uvloop

from servicekit.settings import ServiceSettings, WrongSettings, load
from servicekit.telemetry import configure_logs, logger

S = TypeVar("S", bound=ServiceSettings)

CANNOT_START = 2


def chosen(module: str, arguments: Sequence[str], **roles: Callable[[], int]) -> int:
    """Runs the role of a module that the arguments name, `serve` if they name none.

    Returns the exit code.
    """
    name = " ".join(arguments) or "serve"
    if name not in roles:
        sys.stderr.write(f"usage: python -m {module} [{' | '.join(roles)}]\n")
        return CANNOT_START
    return roles[name]()


def run(
    role: str,
    settings_type: type[S],
    running: Callable[[S], AbstractAsyncContextManager[object]],
) -> int:
    """Runs `running(settings)` until SIGTERM or SIGINT, and returns the exit code.

    `role` names the process and its settings, e.g. `generation-worker`. Leaving the context
    manager is the drain.
    """
    lines: list[str] = []
    try:
        settings = load(settings_type, role, os.environ)
        configure_logs(role, settings.log_level)
        uvloop.run(_until_told(role, settings, running))
    except* WrongSettings as errors:
        lines = [line for error in _flat(errors) for line in error.lines]
    for line in lines:
        sys.stderr.write(f"gesso {role}: {line}\n")
    return CANNOT_START if lines else 0


def _flat(errors: BaseExceptionGroup[WrongSettings]) -> Iterator[WrongSettings]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


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
        _notify("READY=1")
        await told.wait()
        log.info("draining")
    log.info("down")


def _notify(state: str) -> None:
    """Tells whoever started us how we are, if it asked: systemd's protocol, one datagram."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        sender.send(state.encode())
