"""Counts the jobs of all accounts, and the workers."""

from collections.abc import Mapping
from datetime import timedelta

from servicekit.postgres import Database
from services.generation.domain.scaling import QueueStats

# Of the indexes alone, each read once. $2 and $3 are the channels and what they take: what a claim
# would pass by for want of room is no reason to start a worker. The conditions on `account_id` and
# `deliver_at` hold for every row: without one an index would be read as a whole.
COUNT_QUEUE = """
SELECT sum(claimable)::bigint       AS claimable_pending,
       sum(due - claimable)::bigint AS blocked_pending,
       sum(delayed)::bigint         AS delayed_pending,
       (SELECT count(*)
          FROM generation.job
         WHERE status = 'waiting'
           AND account_id > '')     AS waiting,
       sum(active)::bigint          AS running_active,
       sum(running - active)::bigint AS expired_running,
       (SELECT count(*)
          FROM generation.job
         WHERE deliver_at > '-infinity') AS delivering,
       now() - min(oldest)          AS oldest_wait,
       (SELECT count(*)
          FROM generation.worker
         WHERE seen_at > now() - $1::interval) AS workers
  FROM unnest($2::text[], $3::bigint[]) AS channel (name, capacity)
 CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE available_at <= now())         AS due,
                            count(*) FILTER (WHERE available_at > now())          AS delayed,
                            min(available_at) FILTER (WHERE available_at <= now()) AS oldest
                       FROM generation.job
                      WHERE status = 'pending'
                        AND job.channel = channel.name) AS pending
 CROSS JOIN LATERAL (SELECT count(*)                                      AS running,
                            count(*) FILTER (WHERE lease_until > now()) AS active
                       FROM generation.job
                      WHERE status = 'running'
                        AND job.channel = channel.name) AS leased
 CROSS JOIN LATERAL (SELECT CASE WHEN capacity IS NULL THEN due
                                 ELSE least(due, greatest(capacity - running, 0))
                            END AS claimable) AS room
"""


class StatsStore:
    """The numbers of the whole queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, seen_within: timedelta, channels: Mapping[str, int | None]) -> QueueStats:
        """The numbers now, with the workers that were seen in so long a time.

        Of each channel as many jobs can be claimed as may run there at once; None is any number.
        """
        row = await self._database.fetchrow(
            COUNT_QUEUE, seen_within, list(channels), list(channels.values())
        )
        assert row is not None
        return QueueStats(**dict(row.items()))
