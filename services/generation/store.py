"""Remembers the queue: every transition keeps job, summary, event and ledger in one statement.

A transition of a worker is fenced by job, worker and lease token (GN7); its condition does not
repeat the status, which would lure the planner into the index of all leases. Rows that belong to
a job are found by an array or a value, never by joining what another part of the statement
returns alone, so that even a plan made on an empty table uses the index.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta

import asyncpg

from servicekit.postgres import Connection, Database
from services.generation.domain.jobs import (
    ATTEMPT_EXPIRED,
    KINDS,
    SOURCE,
    ClaimedJob,
    Completion,
    Draft,
    Failing,
    Lease,
    Phase,
    Position,
)
from services.generation.wallet_store import REFUND_FAILED, locked_balance

GATHER = """
SELECT (SELECT count(*)
          FROM generation.summary
         WHERE account_id = $1
           AND status = 'pending') AS waiting,
       known.key,
       (SELECT digest
          FROM generation.payload
         WHERE job_key = known.key) AS digest
  FROM (SELECT (SELECT key
                  FROM generation.job
                 WHERE account_id = $1
                   AND dedupe_key = $2) AS key) AS known
"""

ENQUEUE = """
WITH charged AS (
    UPDATE generation.account
       SET balance_micros = balance_micros - $9::bigint
     WHERE account_id = $2
    RETURNING balance_micros
), entry AS (
    INSERT INTO generation.ledger
           (account_id, kind, delta_micros, balance_after_micros, reference)
    SELECT $2, 'charge', -$9::bigint, balance_micros, 'job:' || $1
      FROM charged
), job AS (
    INSERT INTO generation.job
           (job_id, account_id, dedupe_key, kind, canvas_id, node_id, delivers, max_attempts,
            price_micros)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    RETURNING key
), payload AS (
    INSERT INTO generation.payload (job_key, digest, params, position_x, position_y)
    SELECT key, $10, $11, $12, $13
      FROM job
), event AS (
    INSERT INTO generation.event (job_key, kind)
    SELECT key, 'enqueued'
      FROM job
)
INSERT INTO generation.summary
       (job_key, job_id, account_id, kind, source, label, price_micros, canvas_id, node_id)
SELECT key, $1, $2, $4, $14, $15, $9, $5, $6
  FROM job
RETURNING job_key
"""

# Expired leases first, then what waits. What expired with no attempts left fails and is refunded
# here (GN8). The claim's row makes a repeat take nothing anew, also one that runs at the same
# time: it waits for the row, and finds it taken (GN6).
CLAIM = f"""
WITH known AS (
    SELECT job_keys
      FROM generation.claim
     WHERE worker_id = $1
       AND claim_id = $2
), expired AS (
    SELECT key, lease_token, attempt < max_attempts AS is_tried_again
      FROM generation.job
     WHERE status = 'running'
       AND lease_until <= now()
     ORDER BY lease_until
     LIMIT CASE WHEN EXISTS (SELECT FROM known) THEN 0 ELSE $3::bigint END
       FOR UPDATE SKIP LOCKED
), waiting AS (
    SELECT key, lease_token
      FROM generation.job
     WHERE status = 'pending'
       AND available_at >= $5
       AND available_at <= now()
     ORDER BY available_at, key
     LIMIT CASE WHEN EXISTS (SELECT FROM known) THEN 0
                ELSE $3::bigint - (SELECT count(*) FROM expired WHERE is_tried_again)
           END
       FOR UPDATE SKIP LOCKED
), found AS (
    SELECT key, lease_token + 1 AS lease_token
      FROM expired
     WHERE is_tried_again
    UNION ALL
    SELECT key, lease_token + 1
      FROM waiting
), registered AS (
    INSERT INTO generation.claim (worker_id, claim_id, job_keys, lease_tokens)
    SELECT $1, $2, array_agg(key), array_agg(lease_token)
      FROM found
    HAVING count(*) > 0
        ON CONFLICT (worker_id, claim_id) DO NOTHING
    RETURNING job_keys
), claimed AS (
    UPDATE generation.job
       SET status      = 'running',
           worker_id   = $1,
           attempt     = attempt + 1,
           lease_token = lease_token + 1,
           lease_until = now() + $4::interval
     WHERE key = ANY(ARRAY(SELECT unnest(job_keys) FROM registered))
    RETURNING key, job_id, lease_token, account_id, kind, canvas_id, attempt, available_at
), claimed_summary AS (
    UPDATE generation.summary
       SET status     = 'running',
           phase      = 'generating',
           started_at = coalesce(started_at, now()),
           updated_at = now()
     WHERE job_key = ANY(ARRAY(SELECT key FROM claimed))
), claimed_event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token)
    SELECT key, 'claimed', $1, lease_token
      FROM claimed
), failed AS (
    UPDATE generation.job
       SET status      = 'failed',
           worker_id   = NULL,
           lease_until = NULL,
           deliver_at  = CASE WHEN node_id IS NOT NULL THEN now() END
     WHERE key = ANY(ARRAY(SELECT key FROM expired WHERE NOT is_tried_again))
    RETURNING key, job_id, account_id, price_micros, lease_token, deliver_at
), {REFUND_FAILED}, failed_summary AS (
    UPDATE generation.summary AS summary
       SET status          = 'failed',
           phase           = NULL,
           error           = '{ATTEMPT_EXPIRED}',
           refund_entry_id = refunded.entry_id,
           ended_at        = now(),
           updated_at      = now()
      FROM refunded
     WHERE summary.job_key = refunded.key
       AND summary.job_key = ANY(ARRAY(SELECT key FROM failed))
), failed_event AS (
    INSERT INTO generation.event (job_key, kind, lease_token)
    SELECT key, unnest(ARRAY['attempt_expired', 'failed']), lease_token
      FROM failed
)
SELECT EXISTS (SELECT FROM known)
       OR EXISTS (SELECT FROM found) AND NOT EXISTS (SELECT FROM registered) AS is_repeat,
       ARRAY(SELECT job_id FROM failed) AS failed,
       EXISTS (SELECT FROM failed WHERE deliver_at IS NOT NULL) AS is_to_deliver,
       claimed.*,
       payload.params
  FROM (SELECT) AS one
  LEFT JOIN (claimed
             JOIN generation.payload AS payload
               ON payload.job_key = claimed.key
              AND payload.job_key = ANY(ARRAY(SELECT key FROM claimed)))
    ON true
"""

READ_CLAIM = """
WITH known AS (
    SELECT unnest(job_keys) AS key, unnest(lease_tokens) AS lease_token
      FROM generation.claim
     WHERE worker_id = $1
       AND claim_id = $2
), held AS (
    SELECT job.key, job_id, job.lease_token, account_id, kind, canvas_id, attempt, available_at
      FROM generation.job AS job
      JOIN known
        ON known.key = job.key
       AND known.lease_token = job.lease_token
     WHERE job.key = ANY(ARRAY(SELECT key FROM known))
       AND worker_id = $1
       AND lease_until > now()
)
SELECT held.*,
       payload.params
  FROM held
  JOIN generation.payload AS payload
    ON payload.job_key = held.key
   AND payload.job_key = ANY(ARRAY(SELECT key FROM held))
"""

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
    RETURNING job.key, job.job_id, job.lease_token, job.status, item.worker_id, item.outputs,
              item.warning
), outcome AS (
    INSERT INTO generation.outcome (job_key, lease_token, worker_id, outputs, warning)
    SELECT key, lease_token, worker_id, outputs, warning
      FROM ended
), delivering_summary AS (
    UPDATE generation.summary
       SET phase      = 'processing',
           updated_at = now()
     WHERE job_key = ANY(ARRAY(SELECT key FROM ended WHERE status = 'delivering'))
), completed_summary AS (
    UPDATE generation.summary AS summary
       SET status     = 'completed',
           phase      = NULL,
           progress   = 100,
           warning    = ended.warning,
           ended_at   = now(),
           updated_at = now()
      FROM ended
     WHERE summary.job_key = ended.key
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
SELECT worker_id, job_id, lease_token, status
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
    RETURNING job.key, job.job_id, job.lease_token, job.status, item.worker_id, item.error
), outcome AS (
    INSERT INTO generation.outcome (job_key, lease_token, worker_id, error)
    SELECT key, lease_token, worker_id, error
      FROM ended
), waiting_summary AS (
    UPDATE generation.summary
       SET status     = 'pending',
           phase      = NULL,
           progress   = 0,
           updated_at = now()
     WHERE job_key = ANY(ARRAY(SELECT key FROM ended WHERE status = 'pending'))
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token, detail)
    SELECT key, 'failure_reported', worker_id, lease_token, error
      FROM ended
)
SELECT worker_id, job_id, lease_token, status
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

# The lock keeps the transitions of the job away until the summary is written.
UPDATE_PHASE = """
WITH held AS (
    SELECT key
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
           updated_at = now()
     WHERE job_key = (SELECT key FROM held)
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token, detail)
    SELECT key, 'phase_reported', $1, $3, $4
      FROM held
)
SELECT key
  FROM held
"""


@dataclass(frozen=True)
class Claimed:
    """What a claim did: the jobs that it got, and what else came of it.

    `failed` are the ids of the jobs that had no attempts left, `newest` is when the last of the
    jobs began to wait.
    """

    jobs: list[ClaimedJob]
    is_repeat: bool
    failed: list[str]
    is_to_deliver: bool
    newest: datetime | None


class LockedAccount:
    """One account whose jobs and money nobody else changes until the block ends."""

    def __init__(self, connection: Connection, account_id: str, balance_micros: int) -> None:
        self._connection = connection
        self._account_id = account_id
        self.balance_micros = balance_micros

    async def gather(self, dedupe_key: str) -> tuple[int, int | None, bytes | None]:
        """How many jobs wait; the key and the digest of the job of the dedupe key, if any."""
        row = await self._connection.fetchrow(GATHER, self._account_id, dedupe_key)
        assert row is not None
        return row["waiting"], row["key"], row["digest"]

    async def enqueue(self, job_id: str, draft: Draft) -> int:
        """Charges the account and stores the job; its key."""
        target = draft.target
        position = target.position if target else Position()
        key: int = await self._connection.fetchval(
            ENQUEUE,
            job_id,
            self._account_id,
            draft.dedupe_key,
            draft.kind,
            draft.canvas_id,
            target.node_id if target else None,
            target is not None,
            KINDS[draft.kind].max_attempts,
            draft.price_micros,
            draft.digest,
            draft.params,
            position.x,
            position.y,
            SOURCE,
            draft.label,
        )
        return key


class QueueStore:
    """The queue of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def locked(self, account_id: str) -> AsyncIterator[LockedAccount | None]:
        """The account in a transaction that is committed at the end of the block.

        None for an account that never had credits, and so has no jobs.
        """
        async with self._database.transaction() as connection:
            balance = await locked_balance(connection, account_id)
            yield None if balance is None else LockedAccount(connection, account_id, balance)

    async def claim(
        self, worker_id: str, claim_id: str, *, limit: int, lease: timedelta, since: datetime
    ) -> Claimed:
        """Takes up to `limit` jobs that expired, or wait since `since` or later."""
        rows = await self._database.fetch(CLAIM, worker_id, claim_id, limit, lease, since)
        claimed = sorted(
            (row for row in rows if row["key"] is not None), key=lambda row: row["key"]
        )
        return Claimed(
            jobs=[_claimed_job(row) for row in claimed],
            is_repeat=rows[0]["is_repeat"],
            failed=rows[0]["failed"],
            is_to_deliver=rows[0]["is_to_deliver"],
            newest=max((row["available_at"] for row in claimed), default=None),
        )

    async def claimed_before(self, worker_id: str, claim_id: str) -> list[ClaimedJob]:
        """What a claim got, as far as its leases live."""
        rows = await self._database.fetch(READ_CLAIM, worker_id, claim_id)
        return [_claimed_job(row) for row in rows]

    async def renew(self, renewals: Sequence[tuple[Lease, timedelta]]) -> dict[Lease, str]:
        """Extends leases from now on; those that held, with the status of their jobs."""
        leases = [lease for lease, _ in renewals]
        lengths = [length for _, length in renewals]
        rows = await self._database.fetch(RENEW_LEASES, *_columns(leases), lengths)
        return {_lease(row): "running" for row in rows}

    async def complete(self, completions: Sequence[Completion]) -> dict[Lease, str]:
        """Ends attempts with results; those whose leases held, with the status of their jobs."""
        rows = await self._database.fetch(
            COMPLETE,
            *_columns([completion.lease for completion in completions]),
            [
                json.dumps([asdict(output) for output in completion.outputs])
                for completion in completions
            ],
            [completion.warning for completion in completions],
        )
        return {_lease(row): row["status"] for row in rows}

    async def fail(self, failings: Sequence[Failing]) -> dict[Lease, str]:
        """Ends attempts with errors; those whose leases held, with the status of their jobs."""
        rows = await self._database.fetch(
            FAIL,
            *_columns([failing.lease for failing in failings]),
            [failing.error for failing in failings],
        )
        return {_lease(row): row["status"] for row in rows}

    async def accepted(self, leases: Sequence[Lease], *, with_result: bool) -> set[Lease]:
        """Those of the leases that ended with a result, or else with an error, before."""
        rows = await self._database.fetch(READ_OUTCOMES, [lease.job_id for lease in leases])
        ended = {_lease(row) for row in rows if row["is_result"] is with_result}
        return ended.intersection(leases)

    async def update_phase(self, lease: Lease, phase: Phase, progress: int) -> bool:
        """Writes the phase of an attempt; whether its lease held."""
        key = await self._database.fetchrow(
            UPDATE_PHASE, lease.worker_id, lease.job_id, lease.token, phase, progress
        )
        return key is not None


def _columns(leases: Sequence[Lease]) -> tuple[list[str], list[str], list[int]]:
    return (
        [lease.worker_id for lease in leases],
        [lease.job_id for lease in leases],
        [lease.token for lease in leases],
    )


def _lease(row: asyncpg.Record) -> Lease:
    return Lease(row["worker_id"], row["job_id"], row["lease_token"])


def _claimed_job(row: asyncpg.Record) -> ClaimedJob:
    return ClaimedJob(**{field.name: row[field.name] for field in fields(ClaimedJob)})
