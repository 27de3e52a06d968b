"""Gives the jobs of an account their turns, as its other jobs end (GN27).

Whoever ends a job looks afterwards whether its account has others that wait, and whoever stores one
that waits looks afterwards whether a turn is free: of two that miss one another one looks later,
and finds it.
"""

import asyncio
from collections.abc import Iterable

from servicekit.errors import Failure
from servicekit.pauses import spread
from servicekit.telemetry import logger
from services.generation.turns_store import Place, TurnsStore
from services.generation.wakeups import Wakeups

ACCOUNTS_A_LOOK = 100
QUIET_SECONDS = 0.02


class Turns:
    """The turns of all accounts. An account has `limit` of them, for jobs pending or running."""

    def __init__(
        self, store: TurnsStore, wakeups: Wakeups, *, limit: int, poll_seconds: float
    ) -> None:
        self.limit = limit
        self._store = store
        self._wakeups = wakeups
        self._poll_seconds = poll_seconds
        self._unsettled: set[str] = set()
        self._more = asyncio.Event()
        self._log = logger("generation.turns")

    async def places(self, account_id: str) -> dict[str, Place]:
        """Where the jobs of an account stand that nobody has claimed, by their ids."""
        return await self._store.places(account_id)

    def may_be_free(self, account_ids: Iterable[str]) -> None:
        """A job of these accounts ended, or waits since just now."""
        self._unsettled.update(account_ids)
        if self._unsettled:
            self._more.set()

    async def give_forever(self) -> None:
        """Gives turns as they become free."""
        while True:
            await self._more.wait()
            some = [
                self._unsettled.pop() for _ in range(min(len(self._unsettled), ACCOUNTS_A_LOOK))
            ]
            if not self._unsettled:
                self._more.clear()
            try:
                await self._give(await self._store.waiting(some))
            except Failure as failure:
                self._log.warning("turns were not given", why=failure.detail)
                self.may_be_free(some)
                await asyncio.sleep(spread(2 * self._poll_seconds))
            # Ends that come meanwhile are looked at together.
            await asyncio.sleep(QUIET_SECONDS)

    async def look_forever(self) -> None:
        """Looks for turns that a process which died meanwhile would have given."""
        after = ""
        while True:
            await asyncio.sleep(spread(2 * self._poll_seconds))
            try:
                some = await self._store.next_waiting(after, ACCOUNTS_A_LOOK)
                await self._give(some)
            except Failure as failure:
                self._log.warning("turns were not looked for", why=failure.detail)
                continue
            after = some[-1] if len(some) == ACCOUNTS_A_LOOK else ""

    async def _give(self, account_ids: list[str]) -> None:
        if account_ids:
            given, locked = await self._store.give(account_ids, self.limit)
            self.may_be_free(locked)
            if given:
                self._wakeups.jobs_came(given)
