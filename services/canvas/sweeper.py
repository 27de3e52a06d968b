"""Forgets receipts and changes that are older than promised, a little at a time."""

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from servicekit.background import background
from servicekit.errors import Failure
from servicekit.telemetry import logger
from services.canvas.store import CanvasStore

BATCH = 1_000


def sweeping(
    store: CanvasStore, *, every_seconds: float, receipts: timedelta, changes: timedelta
) -> AbstractAsyncContextManager[None]:
    """Forgets what is older than `receipts` and `changes` now and then, inside the block."""
    return background(_sweep(store, every_seconds, receipts, changes))


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
