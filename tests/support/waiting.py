"""Waits for what no event tells."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """Waits until a condition holds; raises `TimeoutError` if it does not for so long."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
