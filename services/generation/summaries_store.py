"""Reads what people may see of their jobs: the summaries, and no other table (GN16)."""

from collections.abc import Sequence
from dataclasses import fields

import asyncpg

from servicekit.postgres import Database
from services.generation.domain.jobs import Overview, Phase, Status, Summary

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

READ_SUMMARY_OF_KEY = f"""
SELECT {_COLUMNS}
  FROM generation.summary AS summary
 WHERE job_key = $2
   AND account_id = $1
"""

# One walk of the index for each status.
LIST_SUMMARIES = f"""
SELECT summary.*
  FROM unnest($2::text[]) AS wanted (status)
 CROSS JOIN LATERAL (SELECT {_COLUMNS}
                       FROM generation.summary AS summary
                      WHERE summary.account_id = $1
                        AND summary.status = wanted.status
                        AND summary.job_key < $3
                      ORDER BY summary.job_key DESC
                      LIMIT $4) AS summary
 ORDER BY summary.key DESC
 LIMIT $4
"""

# What is over last changed when it ended.
READ_OVERVIEW = """
SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
       count(*) FILTER (WHERE status = 'running') AS running,
       greatest(max(updated_at),
                (SELECT ended_at
                   FROM generation.summary
                  WHERE account_id = $1
                    AND ended_at IS NOT NULL
                  ORDER BY ended_at DESC
                  LIMIT 1)) AS updated_at
  FROM generation.summary
 WHERE account_id = $1
   AND status = ANY('{pending,running}')
"""


class SummariesStore:
    """The summaries of all accounts; every method reads those of one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def summary(self, account_id: str, job_id: str) -> Summary | None:
        """One job of the account."""
        row = await self._database.fetchrow(READ_SUMMARY, account_id, job_id)
        return _summary(row) if row else None

    async def summary_of_key(self, account_id: str, key: int) -> Summary | None:
        """One job of the account, by its key."""
        row = await self._database.fetchrow(READ_SUMMARY_OF_KEY, account_id, key)
        return _summary(row) if row else None

    async def page(
        self, account_id: str, statuses: Sequence[Status], before: int, limit: int
    ) -> list[Summary]:
        """Up to `limit` jobs in one of the statuses with keys below `before`, newest first."""
        rows = await self._database.fetch(LIST_SUMMARIES, account_id, statuses, before, limit)
        return [_summary(row) for row in rows]

    async def overview(self, account_id: str) -> Overview:
        """How many jobs are under way."""
        row = await self._database.fetchrow(READ_OVERVIEW, account_id)
        assert row is not None
        return Overview(**row)


def _summary(row: asyncpg.Record) -> Summary:
    columns = dict(row)
    phase = columns.pop("phase")
    return Summary(
        **{**columns, "status": Status(row["status"]), "phase": Phase(phase) if phase else None}
    )
