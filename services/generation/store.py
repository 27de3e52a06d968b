"""Remembers the queue: what is asked for, who claimed it, and what its owner took back.

Every transition of a job keeps job, summary, event and ledger in one statement. Rows that belong
to a job are found by an array or a value, never by joining alone what another part of the
statement returns, so that even a plan made on an empty table uses the index (GN20).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import asyncpg

from servicekit.postgres import Connection, Database
from services.generation.domain.jobs import (
    ATTEMPT_EXPIRED,
    KINDS,
    SOURCE,
    ClaimedJob,
    Draft,
    Position,
)
from services.generation.wallet_store import locked_balance, refunds

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
           updated_at = now(),
           changed_in = pg_current_xact_id()
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
), {refunds("failed")}, failed_summary AS (
    UPDATE generation.summary AS summary
       SET status          = 'failed',
           phase           = NULL,
           error           = '{ATTEMPT_EXPIRED}',
           refund_entry_id = refunded.entry_id,
           ended_at        = now(),
           updated_at      = now(),
           changed_in      = pg_current_xact_id(),
           ended_in        = pg_current_xact_id()
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
       ARRAY(SELECT ARRAY[job_id, account_id] FROM failed) AS failed,
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


# The status is told so that no partial index answers: the job is found by its id.
CANCEL = f"""
WITH cancelled AS (
    UPDATE generation.job
       SET status      = 'cancelled',
           worker_id   = NULL,
           lease_until = NULL,
           deliver_at  = CASE WHEN node_id IS NOT NULL THEN now() END
     WHERE job_id = $2
       AND account_id = $1
       AND status <> ALL('{{delivering,completed,failed,cancelled}}')
    RETURNING key, job_id, account_id, price_micros, lease_token
), {refunds("cancelled")}, summary AS (
    UPDATE generation.summary AS summary
       SET status          = 'cancelled',
           phase           = NULL,
           refund_entry_id = refunded.entry_id,
           ended_at        = now(),
           updated_at      = now(),
           changed_in      = pg_current_xact_id(),
           ended_in        = pg_current_xact_id()
      FROM refunded
     WHERE summary.job_key = refunded.key
       AND summary.job_key = ANY(ARRAY(SELECT key FROM cancelled))
), event AS (
    INSERT INTO generation.event (job_key, kind, lease_token)
    SELECT key, 'cancelled', lease_token
      FROM cancelled
)
SELECT key
  FROM cancelled
"""


@dataclass(frozen=True)
class Claimed:
    """What a claim did: the jobs that it got, and what else came of it.

    `failed` are the jobs that had no attempts left, their accounts by their ids; `newest` is when
    the last of the jobs began to wait.
    """

    jobs: list[ClaimedJob]
    is_repeat: bool
    failed: dict[str, str]
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

    async def cancel(self, account_id: str, job_id: str) -> bool:
        """Cancels and refunds a job that has no result yet; whether it did."""
        return await self._database.fetchrow(CANCEL, account_id, job_id) is not None

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
            failed=dict(rows[0]["failed"]),
            is_to_deliver=rows[0]["is_to_deliver"],
            newest=max((row["available_at"] for row in claimed), default=None),
        )

    async def claimed_before(self, worker_id: str, claim_id: str) -> list[ClaimedJob]:
        """What a claim got, as far as its leases live."""
        rows = await self._database.fetch(READ_CLAIM, worker_id, claim_id)
        return [_claimed_job(row) for row in rows]


def _claimed_job(row: asyncpg.Record) -> ClaimedJob:
    return ClaimedJob(**{field.name: row[field.name] for field in fields(ClaimedJob)})
