"""What can be done with calls of providers."""

from collections.abc import Sequence

from services.generation.calls_store import CallsStore
from services.generation.domain.calls import Begun, Call, Outcome, UncertainCall
from services.generation.domain.failures import CallNotUncertain, LeaseFenced


class ProviderCalls:
    """The calls of all jobs."""

    def __init__(self, store: CallsStore) -> None:
        self._store = store

    async def begin(self, worker_id: str, call: Call, model: str) -> Begun:
        """Takes note that a provider is about to be asked (GN30). Raises `LeaseFenced`."""
        begun = await self._store.begin(worker_id, call, model)
        if begun is None:
            raise LeaseFenced
        return begun

    async def accept(self, call: Call, request_id: str) -> None:
        """Takes note of what the provider calls it."""
        await self._store.accept(call, request_id)

    async def settle(self, call: Call, outcome: Outcome, detail: str | None) -> None:
        """Takes note of what became of it."""
        await self._store.settle(call, outcome, detail)

    async def uncertain(self, before: Sequence[int], limit: int) -> list[UncertainCall]:
        """Up to `limit` calls whose outcome nobody knows, newest first, before one (GN31)."""
        return await self._store.uncertain(before, limit)

    async def resolve(self, job_id: str, number: int, outcome: Outcome, note: str) -> None:
        """Takes note of an outcome that was found out (GN31). Raises `CallNotUncertain`."""
        if not await self._store.resolve(job_id, number, outcome, note):
            raise CallNotUncertain
