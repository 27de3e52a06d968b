"""Sends what comes while a statement is in flight together, with the next statement."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from servicekit.background import background
from servicekit.errors import Failure

MAX_ITEMS = 200
IN_FLIGHT = 2

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

Settle = Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]]


class Batches(Generic[Item, Outcome]):
    """Settles items in batches: at most two at once, an idle one without any delay.

    `settle` answers one outcome for each item of a batch, in order.
    """

    def __init__(self, settle: Settle[Item, Outcome]) -> None:
        self._settle = settle
        self._waiting: deque[tuple[Item, asyncio.Future[Outcome]]] = deque()
        self._more = asyncio.Event()

    async def outcomes(self, items: Sequence[Item]) -> list[Outcome]:
        """The outcomes of some items, in order. Raises what settling one of them raised."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Outcome]] = [loop.create_future() for _ in items]
        self._waiting.extend(zip(items, futures, strict=True))
        self._more.set()
        return await asyncio.gather(*futures)

    async def settle_forever(self) -> None:
        """Settles batches, one after another."""
        while True:
            await self._more.wait()
            # Of those whose callers are gone nothing is done.
            batch: list[tuple[Item, asyncio.Future[Outcome]]] = []
            while self._waiting and len(batch) < MAX_ITEMS:
                entry = self._waiting.popleft()
                if not entry[1].done():
                    batch.append(entry)
            if not self._waiting:
                self._more.clear()
            if batch:
                await self._settle_batch(batch)

    async def _settle_batch(self, batch: list[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        # Whatever it ends with reaches those who wait, and nobody else.
        (settled,) = await asyncio.gather(
            self._settle([item for item, _ in batch]), return_exceptions=True
        )
        if isinstance(settled, Failure) and len(batch) > 1:
            # One item may be in the way of all.
            for entry in batch:
                if not entry[1].done():
                    await self._settle_batch([entry])
            return
        for place, (_, future) in enumerate(batch):
            if future.done():
                continue
            if isinstance(settled, BaseException):
                future.set_exception(settled)
            else:
                future.set_result(settled[place])


def settling(*batches: Batches[Any, Any]) -> AbstractAsyncContextManager[None]:
    """Has the batches settled, inside the block."""
    return background(*(each.settle_forever() for each in batches for _ in range(IN_FLIGHT)))
