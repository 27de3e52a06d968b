"""Repeats calls that may be repeated, until somebody answers or the time is over."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from servicekit.errors import Unavailable

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Answer = TypeVar("Answer")


async def answered(call: Callable[[], Awaitable[Answer]], *, until: float) -> Answer:
    """The answer of a call, made again while it ends in `Unavailable`.

    `until` is in the time of the event loop; after it the last `Unavailable` is raised.
    """
    loop = asyncio.get_running_loop()
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except Unavailable:
            wait = random.uniform(pause / 2, pause)  # noqa: S311 - spreads, hides nothing
            if loop.time() + wait >= until:
                raise
            await asyncio.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
