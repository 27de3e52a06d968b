"""Tells the numbers of the queue, however many ask."""

import asyncio
from collections.abc import Mapping

from servicekit.lookups import Lookups
from services.generation.domain.scaling import SEEN_WITHIN, QueueStats
from services.generation.stats_store import StatsStore

MAX_AGE_SECONDS = 1.0


class Stats:
    """The numbers of the queue, read by one query at a time."""

    def __init__(self, store: StatsStore, channels: Mapping[str, int | None]) -> None:
        self._store = store
        self._channels = channels
        self._lookups: Lookups[None, QueueStats] = Lookups(self._read)
        self._last: tuple[float, QueueStats] | None = None

    async def recent(self) -> QueueStats:
        """The numbers as they were within the last second."""
        if self._last is not None:
            read_at, stats = self._last
            if asyncio.get_running_loop().time() - read_at < MAX_AGE_SECONDS:
                return stats
        return await self.now()

    async def now(self) -> QueueStats:
        """The numbers, of a query that begins after this was called."""
        stats = await self._lookups.get(None)
        assert stats is not None
        return stats

    async def _read(self, _keys: object) -> dict[None, QueueStats]:
        began = asyncio.get_running_loop().time()
        stats = await self._store.count(SEEN_WITHIN, self._channels)
        self._last = (began, stats)
        return {None: stats}
