"""Forgets receipts and changes that are older than promised, a little at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from servicekit.errors import Failure
from servicekit.telemetry import logger
from services.canvas.store import CanvasStore

BATCH = 1_000


@asynccontextmanager
async def sweeping(
    store: CanvasStore, *, every_seconds: float, receipts: timedelta, changes: timedelta
) -> AsyncIterator[None]:
    """Forgets what is older than `receipts` and `changes` now and then, inside the block."""
    async with asyncio.TaskGroup() as tasks:
        sweeper = tasks.create_task(_sweep(store, every_seconds, receipts, changes))
        try:
            yield
        finally:
            sweeper.cancel()


async def _sweep(
    store: CanvasStore, every_seconds: float, receipts: timedelta, changes: timedelta
) -> None:
    log = logger("canvas.sweeper")
    while True:
        forgotten = 0
        try:
            forgotten = await store.prune(receipts=receipts, changes=changes, limit=BATCH)
        except Failure as failure:
            log.warning("nothing was forgotten", why=str(failure))
        if forgotten < BATCH:
            await asyncio.sleep(every_seconds)
