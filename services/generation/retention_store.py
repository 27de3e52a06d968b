"""Forgets jobs that were over long ago, with all that belongs to them but their money."""

from dataclasses import dataclass
from datetime import timedelta

from servicekit.postgres import Database

# Keys grow with time, so what comes after a job that is young is young too. What is on its way to a
# canvas stays, and so does what nobody knows the outcome of (GN31).
FORGET_JOBS = """
WITH seen AS (
    SELECT job_key, ended_at, created_at
      FROM generation.summary
     WHERE job_key > $1
     ORDER BY job_key
     LIMIT $3
), old AS (
    SELECT job_key
      FROM generation.summary
     WHERE job_key = ANY(ARRAY(SELECT job_key FROM seen WHERE ended_at <= now() - $2::interval))
       AND (SELECT count(*) = 0
              FROM generation.provider_call AS call
             WHERE call.job_key = summary.job_key
               AND call.outcome IS NULL)
       AND (SELECT deliver_at IS NULL FROM generation.job WHERE key = summary.job_key)
       FOR UPDATE SKIP LOCKED
), job AS (
    DELETE FROM generation.job
     WHERE key = ANY(ARRAY(SELECT job_key FROM old))
), payload AS (
    DELETE FROM generation.payload
     WHERE job_key = ANY(ARRAY(SELECT job_key FROM old))
), outcome AS (
    DELETE FROM generation.outcome
     WHERE job_key = ANY(ARRAY(SELECT job_key FROM old))
), provider_call AS (
    DELETE FROM generation.provider_call
     WHERE job_key = ANY(ARRAY(SELECT job_key FROM old))
), event AS (
    DELETE FROM generation.event
     WHERE job_key = ANY(ARRAY(SELECT job_key FROM old))
), summary AS (
    DELETE FROM generation.summary
     WHERE job_key = ANY(ARRAY(SELECT job_key FROM old))
)
SELECT (SELECT count(*) FROM old) AS forgotten,
       CASE WHEN count(*) = $3 AND max(created_at) <= now() - $2::interval
            THEN max(job_key)
       END AS last
  FROM seen
"""

FORGET_CLAIMS = """
DELETE FROM generation.claim
 WHERE ctid = ANY(ARRAY(SELECT ctid
                          FROM generation.claim
                         WHERE created_at <= now() - $1::interval
                         ORDER BY created_at
                         LIMIT $2))
"""


@dataclass(frozen=True)
class Forgotten:
    """How many jobs were forgotten, and the key to look on from; None if what follows is young."""

    jobs: int
    last: int | None


class RetentionStore:
    """What is kept of the jobs of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def forget_jobs(self, after: int, *, age: timedelta, limit: int) -> Forgotten:
        """Looks at up to `limit` jobs after a key, and forgets those that ended so long ago."""
        row = await self._database.fetchrow(FORGET_JOBS, after, age, limit)
        assert row is not None
        return Forgotten(row["forgotten"], row["last"])

    async def forget_claims(self, *, age: timedelta, limit: int) -> int:
        """Forgets up to `limit` claims that are so old; how many."""
        return await self._database.delete(FORGET_CLAIMS, age, limit)
