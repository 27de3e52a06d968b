"""Repeats what the database did not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from servicekit.errors import Unavailable
from servicekit.telemetry import logger

PAUSE_SECONDS = 0.5

T = TypeVar("T")


async def patiently(write: Callable[[], Awaitable[T]]) -> T:
    """The outcome of a write that may be repeated, as soon as the database answers.

    Goes on for ever: who keeps the lease cancels it when the time is up.
    """
    log = logger("tasks.worker")
    while True:
        try:
            return await write()
        except Unavailable as failure:
            log.warning("the database did not answer", why=failure.detail)
        await asyncio.sleep(PAUSE_SECONDS)
