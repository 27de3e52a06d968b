"""Counts the jobs of all accounts, and the workers."""

from datetime import timedelta

from servicekit.postgres import Database
from services.generation.domain.scaling import QueueStats

# Of the indexes alone. `deliver_at IS NOT NULL` is all that its index states, and would read it
# without a condition.
COUNT_QUEUE = """
SELECT (SELECT count(*)
          FROM generation.job
         WHERE status = 'pending'
           AND available_at <= now()) AS claimable_pending,
       (SELECT count(*)
          FROM generation.job
         WHERE status = 'pending'
           AND available_at > now()) AS delayed_pending,
       (SELECT count(*)
          FROM generation.job
         WHERE status = 'running'
           AND lease_until > now()) AS running_active,
       (SELECT count(*)
          FROM generation.job
         WHERE status = 'running'
           AND lease_until <= now()) AS expired_running,
       (SELECT count(*)
          FROM generation.job
         WHERE deliver_at > '-infinity') AS delivering,
       (SELECT now() - min(available_at)
          FROM generation.job
         WHERE status = 'pending'
           AND available_at <= now()) AS oldest_wait,
       (SELECT count(*)
          FROM generation.worker
         WHERE seen_at > now() - $1::interval) AS workers
"""


class StatsStore:
    """The numbers of the whole queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, seen_within: timedelta) -> QueueStats:
        """The numbers now, with the workers that were seen in so long a time."""
        row = await self._database.fetchrow(COUNT_QUEUE, seen_within)
        assert row is not None
        return QueueStats(**dict(row.items()))
