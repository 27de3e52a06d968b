"""Forgets what is older than promised, and looks whether the money adds up; a little at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from prometheus_client import Counter

from servicekit.errors import Failure
from servicekit.telemetry import Metrics, logger, pseudonym
from services.generation.retention_store import RetentionStore
from services.generation.wallet_store import WalletStore

BATCH = 200
# No lease is longer than an hour, and a claim without living leases answers nothing.
CLAIM_AGE = timedelta(days=1)
LEDGER_BATCH = 1_000


class Sweeper:
    """The looks of this process, each a batch."""

    def __init__(
        self, retention: RetentionStore, wallets: WalletStore, metrics: Metrics, *, age: timedelta
    ) -> None:
        self._retention = retention
        self._wallets = wallets
        self._age = age
        self._job_key = 0
        self._entry_key = 0
        self._mismatches = Counter(
            "gesso_wallet_mismatches",
            "Ledger entries and balances that do not add up, since the process began.",
            registry=metrics.registry,
        )
        self._log = logger("generation.sweeper")

    async def sweep_forever(self, *, every_seconds: float) -> None:
        """Looks at everything now and then."""
        while True:
            for look in (self.forget_jobs, self.forget_claims, self.audit):
                await self.through(look)
            await asyncio.sleep(every_seconds)

    async def forget_jobs(self) -> bool:
        """Forgets a batch of jobs (GN32); whether there may be more."""
        forgotten = await self._retention.forget_jobs(self._job_key, age=self._age, limit=BATCH)
        self._job_key = forgotten.last or 0
        return forgotten.last is not None

    async def forget_claims(self) -> bool:
        """Forgets a batch of claims; whether there may be more."""
        return await self._retention.forget_claims(age=CLAIM_AGE, limit=BATCH) == BATCH

    async def audit(self) -> bool:
        """Looks at a batch of the ledger (GN33); whether there may be more."""
        audited = await self._wallets.audit(self._entry_key, LEDGER_BATCH)
        self._entry_key = audited.last or self._entry_key
        for account_id in audited.wrong:
            self._mismatches.inc()
            self._log.error("money does not add up", account=pseudonym(account_id))
        return audited.entries == LEDGER_BATCH

    async def through(self, look: Callable[[], Awaitable[bool]]) -> None:
        """Looks again and again while there may be more, and leaves others twice the time."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                if not await look():
                    return
                await asyncio.sleep(2 * (loop.time() - began))
        except Failure as failure:
            self._log.warning("the look was not finished", why=failure.detail)
