"""Hands out jobs: at once if there are some, else as soon as one comes."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from servicekit.pauses import spread
from services.generation.batches import Batches, settling
from services.generation.domain.jobs import ClaimedJob
from services.generation.store import EVER, Asked, Channel, Claimed, QueueStore
from services.generation.turns import Turns
from services.generation.wakeups import Wakeups
from services.generation.workers import Workers

# How long a transaction that enqueues may take before its job is overlooked for a moment.
SLACK = timedelta(seconds=1)
FULL_LOOK_SECONDS = 1.0
# How long, at most, a claim stands aside for another that has a limited channel.
ASIDE_SECONDS = 0.02
# One statement hands out at most so many, or what one claim wants.
JOBS_A_LOOK = 200


@dataclass(frozen=True)
class Claim(Asked):
    """One claim of a worker, and how long it waits. Its id is the same in every repeat."""

    wait: timedelta


@dataclass(frozen=True)
class _Found:
    """What one claim found. A repeat got its jobs before; a partial one passed by a channel."""

    jobs: list[ClaimedJob]
    is_repeat: bool
    is_partial: bool


_REPEAT = _Found([], is_repeat=True, is_partial=False)


class Claims:
    """The claims of all workers at this process. Those that come together look together.

    Remembers where the ready jobs without a priority begin: a transaction that somebody holds open
    keeps the dead rows before them, and each look from the start would pass over all of those.
    Looks from the start all the same once a second, and when it finds too little.
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
        self._looks: Batches[Claim, _Found] = Batches(self._look)
        # Where the ready jobs of each channel begin.
        self._since: dict[str, datetime] = {}
        self._full_look_at = 0.0

    def taking(self) -> AbstractAsyncContextManager[None]:
        """Looks for jobs as they are claimed, inside the block."""
        return settling(self._looks)

    async def jobs(self, claim: Claim) -> list[ClaimedJob]:
        """What the claim gets: nothing if nothing comes in time, or the process is to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + claim.wait.total_seconds()
        while True:
            self._workers.heard(claim.worker_id)
            calls = self._wakeups.pending.calls
            (found,) = await self._looks.outcomes([claim])
            if found.is_repeat:
                return await self._store.claimed_before(claim.worker_id, claim.claim_id)
            left = until - loop.time()
            if found.jobs or left <= 0 or self._draining.is_set():
                return found.jobs
            pause = ASIDE_SECONDS if found.is_partial else 2 * self._poll_seconds
            await self._wakeups.pending.wait(min(left, spread(pause)), since=calls)

    async def _look(self, claims: Sequence[Claim]) -> list[_Found]:
        """What each claim finds, of those that came together."""
        found: dict[tuple[str, str], _Found] = {}
        first = {(claim.worker_id, claim.claim_id): claim for claim in reversed(claims)}
        for some in _shares(list(first.values())):
            found |= await self._found(some)
        return [self._of(claim, first[claim.worker_id, claim.claim_id], found) for claim in claims]

    def _of(self, claim: Claim, first: Claim, found: Mapping[tuple[str, str], _Found]) -> _Found:
        """What a claim found. One that came twice at once has got its jobs by now, if any."""
        mine = found[claim.worker_id, claim.claim_id]
        return mine if claim is first or not mine.jobs else _REPEAT

    async def _found(self, claims: Sequence[Claim]) -> dict[tuple[str, str], _Found]:
        now = asyncio.get_running_loop().time()
        is_full = now - self._full_look_at >= FULL_LOOK_SECONDS or not self._since
        claimed = await self._take(claims, since={} if is_full else self._since)
        if not is_full and not claimed.jobs and len(claimed.repeats) < len(claims):
            claimed = await self._take(claims, since={})
        names = [(claim.worker_id, claim.claim_id) for claim in claims]
        return {
            name: _Found(
                claimed.jobs.get(name, []),
                is_repeat=name in claimed.repeats,
                is_partial=claimed.is_partial,
            )
            for name in names
        }

    async def _take(self, claims: Sequence[Claim], since: Mapping[str, datetime]) -> Claimed:
        if not since:
            self._full_look_at = asyncio.get_running_loop().time()
        claimed = await self._store.claim(
            claims,
            [replace(channel, since=since.get(channel.name, EVER)) for channel in self._channels],
        )
        for channel, newest in claimed.newest.items():
            self._since[channel] = newest - SLACK
        for jobs in claimed.jobs.values():
            for job in jobs:
                self._wakeups.job_changed(job.job_id, job.account_id)
        for job_id, account_id in claimed.failed.items():
            self._wakeups.job_changed(job_id, account_id)
        self._turns.may_be_free(claimed.failed.values())
        if claimed.is_to_deliver:
            self._wakeups.deliveries.wake()
        return claimed


def _shares(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    """The claims in as few lists as want at most so many jobs each."""
    share: list[Claim] = []
    for claim in claims:
        if share and sum(each.limit for each in share) + claim.limit > JOBS_A_LOOK:
            yield share
            share = []
        share.append(claim)
    if share:
        yield share
