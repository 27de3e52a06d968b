"""How long to wait before doing something again, and who does it for calls."""

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
            wait = jittered(pause / 2)
            if loop.time() + wait >= until:
                raise
            await asyncio.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def jittered(seconds: float) -> float:
    """Once to twice as long, so that not all who wait come back at once."""
    return random.uniform(seconds, 2 * seconds)  # noqa: S311 - spreads, hides nothing
