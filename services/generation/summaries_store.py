"""Keeps what people may see of their jobs: the summaries, and no other table (GN16)."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

import asyncpg

from servicekit.postgres import Database
from servicekit.watches import Asked, Change, Found, columns_from_asked, found_from_rows
from services.generation.domain.jobs import Overview, Phase, Shown, Status, Summary

_COLUMNS = ", ".join(
    f"summary.{'job_key AS key' if field.name == 'key' else field.name}"
    for field in fields(Summary)
)

READ_SUMMARY = f"""
SELECT {_COLUMNS}
  FROM generation.summary AS summary
 WHERE job_id = $2
   AND account_id = $1
"""

READ_SUMMARIES_OF_KEYS = f"""
SELECT {_COLUMNS}
  FROM generation.summary AS summary
 WHERE job_key = ANY($2::bigint[])
   AND account_id = $1
"""

# One walk of an index for each status: of all that have it, or of what nobody has seen the end of.
LIST_SUMMARIES = f"""
SELECT summary.*
  FROM unnest($2::text[]) AS wanted (status)
 CROSS JOIN LATERAL ((SELECT {_COLUMNS}
                        FROM generation.summary AS summary
                       WHERE summary.account_id = $1
                         AND summary.status = wanted.status
                         AND summary.job_key < $3
                         AND ($5 OR wanted.status IN ('pending', 'running'))
                       ORDER BY summary.job_key DESC
                       LIMIT $4)
                      UNION ALL
                     (SELECT {_COLUMNS}
                        FROM generation.summary AS summary
                       WHERE summary.account_id = $1
                         AND summary.status = wanted.status
                         AND summary.job_key < $3
                         AND summary.ended_at IS NOT NULL
                         AND summary.acknowledged_at IS NULL
                         AND NOT $5
                       ORDER BY summary.job_key DESC
                       LIMIT $4)) AS summary
 ORDER BY summary.key DESC
 LIMIT $4
"""

# What is over last changed when it ended, or was acknowledged.
READ_OVERVIEW = """
SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
       count(*) FILTER (WHERE status = 'running') AS running,
       (SELECT count(*)
          FROM (SELECT
                  FROM generation.summary
                 WHERE account_id = $1
                   AND ended_at IS NOT NULL
                   AND acknowledged_at IS NULL
                 LIMIT 1000) AS unread) AS unacknowledged,
       greatest(max(updated_at),
                (SELECT updated_at
                   FROM generation.summary
                  WHERE account_id = $1
                    AND ended_in IS NOT NULL
                  ORDER BY ended_in DESC
                  LIMIT 1)) AS updated_at
  FROM generation.summary
 WHERE account_id = $1
   AND status = ANY('{pending,running}')
"""

# The conditions are told so that the jobs are found by their ids.
ACKNOWLEDGE = """
WITH acknowledged AS (
    UPDATE generation.summary
       SET acknowledged_at = now(),
           updated_at      = now(),
           changed_in      = pg_current_xact_id(),
           ended_in        = pg_current_xact_id()
     WHERE job_key = ANY(ARRAY(SELECT job_key
                                 FROM generation.summary
                                WHERE job_id = ANY($2::text[])
                                  AND account_id = $1
                                ORDER BY job_id
                                  FOR NO KEY UPDATE))
       AND num_nonnulls(ended_at) = 1
       AND num_nulls(acknowledged_at) = 1
    RETURNING job_key, job_id
), event AS (
    INSERT INTO generation.event (job_key, kind)
    SELECT job_key, 'acknowledged'
      FROM acknowledged
)
SELECT job_id
  FROM acknowledged
"""

# Those whose account somebody watches.
READ_NEWEST = f"""
SELECT {_COLUMNS},
       summary.account_id
  FROM generation.summary AS summary
 WHERE summary.job_id = ANY($1::text[])
   AND summary.account_id = ANY($2::text[])
"""

# Always a row, for the snapshot. What a database that this one was restored from called a later
# transaction is none of ours.
READ_SINCE = f"""
SELECT pg_current_snapshot()::text AS snapshot,
       found.*
  FROM (SELECT) AS one
  LEFT JOIN (SELECT asked.place - 1 AS place,
                    summary.*
               FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
                    WITH ORDINALITY
                    AS asked (account_id, live_since, ended_since, after_in, after_key, place)
              CROSS JOIN LATERAL
                    (SELECT {_COLUMNS},
                            summary.account_id,
                            NULL AS ended_in
                       FROM generation.summary AS summary
                      WHERE summary.account_id = asked.account_id
                        AND summary.status = ANY('{{pending,running}}')
                        AND NOT pg_visible_in_snapshot(changed_in, asked.live_since::pg_snapshot)
                      UNION ALL
                    (SELECT {_COLUMNS},
                            summary.account_id,
                            ended_in::text
                       FROM generation.summary AS summary
                      WHERE summary.account_id = asked.account_id
                        AND (ended_in, summary.job_key) > (asked.after_in::xid8, asked.after_key)
                        AND ended_in IS NOT NULL
                        AND ended_in < pg_snapshot_xmax(pg_current_snapshot())
                        AND NOT pg_visible_in_snapshot(ended_in, asked.ended_since::pg_snapshot)
                      ORDER BY summary.ended_in, summary.job_key
                      LIMIT $6)) AS summary) AS found
    ON true
"""


class SummariesStore:
    """The summaries of all accounts; every method reads those of one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def summary(self, account_id: str, job_id: str) -> Summary | None:
        """One job of the account."""
        row = await self._database.fetchrow(READ_SUMMARY, account_id, job_id)
        return _summary(row) if row else None

    async def summaries_of_keys(self, account_id: str, keys: Iterable[int]) -> dict[int, Summary]:
        """Jobs of the account, by their keys."""
        rows = await self._database.fetch(READ_SUMMARIES_OF_KEYS, account_id, list(keys))
        return {row["key"]: _summary(row) for row in rows}

    async def page(self, account_id: str, shown: Shown, before: int, limit: int) -> list[Summary]:
        """Up to `limit` of the jobs to be shown with keys below `before`, newest first."""
        rows = await self._database.fetch(
            LIST_SUMMARIES, account_id, shown.statuses, before, limit, shown.with_acknowledged
        )
        return [_summary(row) for row in rows]

    async def acknowledge(self, account_id: str, job_ids: Sequence[str]) -> list[str]:
        """Takes note that the ends of jobs were seen; those that were over, and not seen before."""
        rows = await self._database.fetch(ACKNOWLEDGE, account_id, job_ids)
        return [row["job_id"] for row in rows]

    async def newest(
        self, job_ids: Sequence[str], account_ids: Sequence[str]
    ) -> list[Change[Summary]]:
        """The jobs of those ids that belong to those accounts."""
        rows = await self._database.fetch(READ_NEWEST, job_ids, account_ids)
        return [_change(row) for row in rows]

    async def since(self, asked: Sequence[Asked], limit: int) -> Found[Summary]:
        """What changed; of what ended at most `limit` of each account."""
        rows = await self._database.fetch(READ_SINCE, *columns_from_asked(asked), limit)
        changes = [_change(row) if row["key"] is not None else None for row in rows]
        return found_from_rows(asked, limit, rows, changes)

    async def overview(self, account_id: str) -> Overview:
        """How many jobs are under way."""
        row = await self._database.fetchrow(READ_OVERVIEW, account_id)
        assert row is not None
        return Overview(**row)


def _summary(row: asyncpg.Record) -> Summary:
    columns = {field.name: row[field.name] for field in fields(Summary)}
    phase = row["phase"]
    return Summary(
        **{**columns, "status": Status(row["status"]), "phase": Phase(phase) if phase else None}
    )


def _change(row: asyncpg.Record) -> Change[Summary]:
    return Change(row["account_id"], row["job_id"], _summary(row))
