"""Hands out jobs: at once if there are some, else as soon as one comes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from servicekit.pauses import spread
from services.generation.domain.jobs import ClaimedJob
from services.generation.store import EVER, Channel, Claimed, QueueStore
from services.generation.turns import Turns
from services.generation.wakeups import Wakeups
from services.generation.workers import Workers

# How long a transaction that enqueues may take before its job is overlooked for a moment.
SLACK = timedelta(seconds=1)
FULL_LOOK_SECONDS = 1.0
# How long, at most, a claim stands aside for another that has a limited channel.
ASIDE_SECONDS = 0.02


@dataclass(frozen=True)
class Claim:
    """One claim of a worker. Its id is the same in every repeat."""

    worker_id: str
    claim_id: str
    limit: int
    lease: timedelta
    wait: timedelta


class Claims:
    """The claims of all workers at this process.

    Remembers where the ready jobs begin: a transaction that somebody holds open keeps the dead
    rows before them, and each look from the start would pass over all of those. Looks from the
    start all the same once a second, and when it finds too little.
    """

    def __init__(
        self,
        store: QueueStore,
        wakeups: Wakeups,
        turns: Turns,
        workers: Workers,
        *,
        channels: Sequence[Channel],
        draining: asyncio.Event,
        poll_seconds: float,
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._turns = turns
        self._workers = workers
        self._channels = channels
        self._draining = draining
        self._poll_seconds = poll_seconds
        # Where the ready jobs of each channel begin.
        self._since: dict[str, datetime] = {}
        self._full_look_at = 0.0

    async def jobs(self, claim: Claim) -> list[ClaimedJob]:
        """What the claim gets: nothing if nothing comes in time, or the process is to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + claim.wait.total_seconds()
        while True:
            self._workers.heard(claim.worker_id)
            calls = self._wakeups.pending.calls
            claimed = await self._look(claim)
            if claimed.is_repeat:
                return await self._store.claimed_before(claim.worker_id, claim.claim_id)
            left = until - loop.time()
            if claimed.jobs or left <= 0 or self._draining.is_set():
                return claimed.jobs
            pause = ASIDE_SECONDS if claimed.is_partial else 2 * self._poll_seconds
            await self._wakeups.pending.wait(min(left, spread(pause)), since=calls)

    async def _look(self, claim: Claim) -> Claimed:
        now = asyncio.get_running_loop().time()
        if now - self._full_look_at >= FULL_LOOK_SECONDS:
            return await self._take(claim, since={})
        claimed = await self._take(claim, self._since)
        if not claimed.jobs and not claimed.is_repeat and self._since:
            claimed = await self._take(claim, since={})
        return claimed

    async def _take(self, claim: Claim, since: Mapping[str, datetime]) -> Claimed:
        if not since:
            self._full_look_at = asyncio.get_running_loop().time()
        claimed = await self._store.claim(
            claim.worker_id,
            claim.claim_id,
            limit=claim.limit,
            lease=claim.lease,
            channels=[
                replace(channel, since=since.get(channel.name, EVER)) for channel in self._channels
            ],
        )
        for channel, newest in claimed.newest.items():
            self._since[channel] = newest - SLACK
        for job in claimed.jobs:
            self._wakeups.job_changed(job.job_id, job.account_id)
        for job_id, account_id in claimed.failed.items():
            self._wakeups.job_changed(job_id, account_id)
        self._turns.may_be_free(claimed.failed.values())
        if claimed.is_to_deliver:
            self._wakeups.deliveries.wake()
        return claimed
