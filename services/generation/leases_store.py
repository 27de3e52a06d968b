"""Remembers what workers say of their attempts: that they live, where they are, how they ended.

Each transition is fenced by job, worker and lease token (GN7). Its condition does not repeat the
status, which would lure the planner into the index of all leases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from msgspec.json import encode

from servicekit.postgres import Database
from services.generation.domain.jobs import (
    Completion,
    Failing,
    JobResult,
    Lease,
    Phase,
    Status,
    outputs_from_json,
)

# The leases of a list: $1 workers, $2 jobs, $3 tokens, one of each for every item.
_HELD = """
       job.job_id = ANY($2::text[])
   AND job.job_id = item.job_id
   AND job.worker_id = item.worker_id
   AND job.lease_token = item.lease_token
   AND job.lease_until > now()"""

RENEW_LEASES = f"""
WITH renewed AS (
    UPDATE generation.job AS job
       SET lease_until = now() + item.lease
      FROM unnest($1::text[], $2::text[], $3::bigint[], $4::interval[])
           AS item (worker_id, job_id, lease_token, lease)
     WHERE {_HELD}
    RETURNING job.key, job.job_id, job.worker_id, job.lease_token
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token)
    SELECT key, 'lease_renewed', worker_id, lease_token
      FROM renewed
)
SELECT worker_id, job_id, lease_token
  FROM renewed
"""

# Of arrays the planner takes it that they are long, and so reads the summaries once, not once for
# each job that ended.
COMPLETE = f"""
WITH ended AS (
    UPDATE generation.job AS job
       SET status      = CASE WHEN delivers THEN 'delivering' ELSE 'completed' END,
           deliver_at  = CASE WHEN delivers THEN now() END,
           worker_id   = NULL,
           lease_until = NULL
      FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[])
           AS item (worker_id, job_id, lease_token, outputs, warning)
     WHERE {_HELD}
    RETURNING job.key, job.job_id, job.account_id, job.lease_token, job.status, job.kind,
              now() - job.claimed_at AS took, item.worker_id, item.outputs, item.warning
), outcome AS (
    INSERT INTO generation.outcome (job_key, lease_token, worker_id, outputs, warning)
    SELECT key, lease_token, worker_id, outputs, warning
      FROM ended
), delivering_summary AS (
    UPDATE generation.summary
       SET phase      = 'processing',
           updated_at = now(),
           changed_in = pg_current_xact_id()
     WHERE job_key = ANY(ARRAY(SELECT key FROM ended WHERE status = 'delivering'))
), completed_summary AS (
    UPDATE generation.summary AS summary
       SET status     = 'completed',
           phase      = NULL,
           progress   = 100,
           warning    = done.warning,
           ended_at   = now(),
           updated_at = now(),
           changed_in = pg_current_xact_id(),
           ended_in   = pg_current_xact_id()
      FROM unnest(ARRAY(SELECT key FROM ended WHERE status = 'completed'),
                  ARRAY(SELECT warning FROM ended WHERE status = 'completed'))
           AS done (key, warning)
     WHERE summary.job_key = done.key
       AND summary.job_key = ANY(ARRAY(SELECT key FROM ended WHERE status = 'completed'))
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token)
    SELECT key, 'result_stored', worker_id, lease_token
      FROM ended
    UNION ALL
    SELECT key, 'completed', NULL, lease_token
      FROM ended
     WHERE status = 'completed'
)
SELECT worker_id, job_id, lease_token, account_id, status, kind, took
  FROM ended
"""

# With attempts left a job waits for the next, twice as long each time; else its placeholder is
# told first, and the delivery fails and refunds it (GN13).
FAIL = f"""
WITH ended AS (
    UPDATE generation.job AS job
       SET status       = CASE WHEN attempt < max_attempts THEN 'pending' ELSE 'delivering' END,
           available_at = now() + make_interval(secs => 2 ^ least(attempt, 10)),
           deliver_at   = CASE WHEN attempt < max_attempts THEN NULL ELSE now() END,
           worker_id    = NULL,
           lease_until  = NULL
      FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
           AS item (worker_id, job_id, lease_token, error)
     WHERE {_HELD}
    RETURNING job.key, job.job_id, job.account_id, job.lease_token, job.status, item.worker_id,
              item.error
), outcome AS (
    INSERT INTO generation.outcome (job_key, lease_token, worker_id, error)
    SELECT key, lease_token, worker_id, error
      FROM ended
), waiting_summary AS (
    UPDATE generation.summary
       SET status     = 'pending',
           phase      = NULL,
           progress   = 0,
           updated_at = now(),
           changed_in = pg_current_xact_id()
     WHERE job_key = ANY(ARRAY(SELECT key FROM ended WHERE status = 'pending'))
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token, detail)
    SELECT key, 'failure_reported', worker_id, lease_token, error
      FROM ended
)
SELECT worker_id, job_id, lease_token, account_id, status
  FROM ended
"""

# What an attempt that ended already was told: its repeat is told the same.
READ_OUTCOMES = """
WITH asked AS (
    SELECT key, job_id
      FROM generation.job
     WHERE job_id = ANY($1::text[])
)
SELECT outcome.worker_id, asked.job_id, outcome.lease_token, outcome.error IS NULL AS is_result
  FROM asked
  JOIN generation.outcome AS outcome
    ON outcome.job_key = asked.key
   AND outcome.job_key = ANY(ARRAY(SELECT key FROM asked))
"""

# A result is there from the commit point on.
READ_RESULT = """
SELECT summary.status, summary.error, outcome.outputs, outcome.warning
  FROM generation.summary AS summary
  LEFT JOIN LATERAL (SELECT outputs, warning
                       FROM generation.outcome
                      WHERE outcome.job_key = summary.job_key
                        AND outputs IS NOT NULL
                        AND summary.status IN ('running', 'completed')
                      LIMIT 1) AS outcome
    ON true
 WHERE summary.job_id = $2
   AND summary.account_id = $1
"""

# Of the leases that do not hold, those whose jobs their owners cancelled meanwhile.
READ_CANCELLED = """
SELECT item.worker_id, job.job_id, job.lease_token
  FROM generation.job AS job
  JOIN unnest($1::text[], $2::text[], $3::bigint[]) AS item (worker_id, job_id, lease_token)
    ON item.job_id = job.job_id
   AND item.lease_token = job.lease_token
 WHERE job.job_id = ANY($2::text[])
   AND job.status = ANY('{cancelled}')
"""

# The lock keeps the transitions of the job away until the summary is written.
UPDATE_PHASE = """
WITH held AS (
    SELECT key, account_id
      FROM generation.job
     WHERE job_id = $2
       AND worker_id = $1
       AND lease_token = $3
       AND lease_until > now()
       FOR NO KEY UPDATE
), summary AS (
    UPDATE generation.summary
       SET phase      = $4,
           progress   = greatest(progress, $5),
           updated_at = now(),
           changed_in = pg_current_xact_id()
     WHERE job_key = (SELECT key FROM held)
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token, detail)
    SELECT key, 'phase_reported', $1, $3, $4
      FROM held
)
SELECT account_id
  FROM held
"""


@dataclass(frozen=True)
class Standing:
    """Whose a job is, and its status once its attempt has ended."""

    account_id: str
    status: str


@dataclass(frozen=True)
class Made(Standing):
    """How long the attempt took that made the result; None if it began before that was noted."""

    kind: str
    took: timedelta | None


class LeasesStore:
    """The attempts of all workers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(self, renewals: Sequence[tuple[Lease, timedelta]]) -> set[Lease]:
        """Extends leases from now on; those that held."""
        leases = [lease for lease, _ in renewals]
        lengths = [length for _, length in renewals]
        rows = await self._database.fetch(RENEW_LEASES, *_columns(leases), lengths)
        return {_lease(row) for row in rows}

    async def cancelled(self, leases: Sequence[Lease]) -> set[Lease]:
        """Those of the leases that ended because the owners of their jobs cancelled them."""
        rows = await self._database.fetch(READ_CANCELLED, *_columns(leases))
        return {_lease(row) for row in rows}

    async def complete(self, completions: Sequence[Completion]) -> dict[Lease, Made]:
        """Ends attempts with results; those whose leases held, with where their jobs are."""
        rows = await self._database.fetch(
            COMPLETE,
            *_columns([completion.lease for completion in completions]),
            [encode(completion.outputs).decode() for completion in completions],
            [completion.warning for completion in completions],
        )
        return {
            _lease(row): Made(row["account_id"], row["status"], row["kind"], row["took"])
            for row in rows
        }

    async def fail(self, failings: Sequence[Failing]) -> dict[Lease, Standing]:
        """Ends attempts with errors; those whose leases held, with where their jobs are."""
        rows = await self._database.fetch(
            FAIL,
            *_columns([failing.lease for failing in failings]),
            [failing.error for failing in failings],
        )
        return {_lease(row): Standing(row["account_id"], row["status"]) for row in rows}

    async def result(self, account_id: str, job_id: str) -> JobResult | None:
        """What a job of the account made; None if there is no such job."""
        row = await self._database.fetchrow(READ_RESULT, account_id, job_id)
        if row is None:
            return None
        outputs = () if row["outputs"] is None else outputs_from_json(row["outputs"])
        return JobResult(Status(row["status"]), row["error"], outputs, row["warning"])

    async def accepted(self, leases: Sequence[Lease], *, with_result: bool) -> set[Lease]:
        """Those of the leases that ended with a result, or else with an error, before."""
        rows = await self._database.fetch(READ_OUTCOMES, [lease.job_id for lease in leases])
        ended = {_lease(row) for row in rows if row["is_result"] is with_result}
        return ended.intersection(leases)

    async def update_phase(self, lease: Lease, phase: Phase, progress: int) -> str | None:
        """Writes the phase of an attempt; whose job it is, None if its lease did not hold."""
        row = await self._database.fetchrow(
            UPDATE_PHASE, lease.worker_id, lease.job_id, lease.token, phase, progress
        )
        return row["account_id"] if row else None


def _columns(leases: Sequence[Lease]) -> tuple[list[str], list[str], list[int]]:
    return (
        [lease.worker_id for lease in leases],
        [lease.job_id for lease in leases],
        [lease.token for lease in leases],
    )


def _lease(row: asyncpg.Record) -> Lease:
    return Lease(row["worker_id"], row["job_id"], row["lease_token"])
