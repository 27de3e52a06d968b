"""The workers that are here: noted as they ask and renew, written down now and then."""

import asyncio

from servicekit.errors import Failure
from servicekit.telemetry import logger
from services.generation.workers_store import WorkersStore

# So often is a worker written down, and so often are any.
WORKER_SECONDS = 10.0
QUIET_SECONDS = 1.0
MAX_WORKERS = 10_000


class Workers:
    """The workers that this process hears of."""

    def __init__(self, store: WorkersStore) -> None:
        self._store = store
        self._heard: set[str] = set()
        self._written: dict[str, float] = {}
        self._news = asyncio.Event()

    def heard(self, worker_id: str) -> None:
        """A worker is here now."""
        now = asyncio.get_running_loop().time()
        if now - self._written.get(worker_id, -WORKER_SECONDS) < WORKER_SECONDS:
            return
        if len(self._heard) < MAX_WORKERS:
            self._heard.add(worker_id)
            self._news.set()

    async def write_forever(self) -> None:
        """Writes down who was heard. What fails is written once it is heard again."""
        log = logger("generation.workers")
        while True:
            await self._news.wait()
            self._news.clear()
            heard, self._heard = self._heard, set()
            now = asyncio.get_running_loop().time()
            self._written = {
                worker_id: written
                for worker_id, written in self._written.items()
                if now - written < WORKER_SECONDS
            }
            try:
                await self._store.see(heard)
                self._written |= dict.fromkeys(heard, now)
            except Failure as failure:
                log.warning("workers were not written down", why=failure.detail)
            await asyncio.sleep(QUIET_SECONDS)
