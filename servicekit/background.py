"""Runs what never ends beside a block of code."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the loops inside the block, and cancels them at its end.

    One that fails ends the block, and is raised within an exception group.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
