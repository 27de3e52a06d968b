"""Makes a call again while nobody answers it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from servicekit.errors import Unavailable
from servicekit.pauses import growing

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Answer = TypeVar("Answer")


async def answered(call: Callable[[], Awaitable[Answer]], *, until: float) -> Answer:
    """The answer of a call, made again while it ends in `Unavailable`.

    `until` is in the time of the event loop; after it the last `Unavailable` is raised.
    """
    loop = asyncio.get_running_loop()
    pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        pause = next(pauses)
        try:
            return await call()
        except Unavailable:
            if loop.time() + pause >= until:
                raise
        await asyncio.sleep(pause)
