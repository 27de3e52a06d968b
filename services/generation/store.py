"""Remembers the queue: what is asked for, who claimed it, and what its owner took back.

Every transition of a job keeps job, summary, event and ledger in one statement. Rows that belong
to a job are found by an array or a value, never by joining alone what another part of the
statement returns, so that even a plan made on an empty table uses the index (GN20).
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

import asyncpg

from servicekit.postgres import Connection, Database
from services.generation.domain.intake import Gathered, Known, Order
from services.generation.domain.jobs import (
    ATTEMPT_EXPIRED,
    KINDS,
    SOURCE,
    ClaimedJob,
    Position,
)
from services.generation.domain.money import Entry
from services.generation.domain.prices import CHANNELS
from services.generation.wallet_store import (
    charge,
    entries_of_job,
    locked_balance,
    refund,
    refunds,
)

EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Channel:
    """Where a claim looks for jobs that are pending since a time or later.

    At most `capacity` jobs of the channel are worked on at once, all claims together; None is any
    number.
    """

    name: str
    capacity: int | None = None
    since: datetime = EVER


EVERYWHERE = tuple(Channel(name) for name in CHANNELS)

# Always a row; one for each job of the dedupe keys.
GATHER = """
SELECT (SELECT count(*)
          FROM generation.summary
         WHERE account_id = $1
           AND status = 'pending') AS waiting,
       (SELECT count(*)
          FROM generation.job
         WHERE account_id = $1
           AND status IN ('pending', 'running')) AS under_way,
       known.dedupe_key,
       known.key,
       (SELECT digest
          FROM generation.payload
         WHERE job_key = known.key) AS digest
  FROM (SELECT) AS one
  LEFT JOIN generation.job AS known
    ON known.account_id = $1
   AND known.dedupe_key = ANY($2::text[])
"""

# The items of a list: one of each for every job. The account's row is locked, so its balance is
# what was read: $2.
ENQUEUE = f"""
WITH item AS (
    SELECT *
      FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::boolean[],
                  $9::integer[], $10::bigint[], $11::text[], $12::integer[], $13::text[],
                  $14::bytea[], $15::text[], $16::double precision[], $17::double precision[],
                  $18::text[])
           WITH ORDINALITY
           AS item (job_id, dedupe_key, kind, canvas_id, node_id, delivers, max_attempts,
                    price_micros, channel, priority, status, digest, params, x, y, label, place)
), charged AS (
    UPDATE generation.account
       SET balance_micros = $2::bigint - (SELECT sum(price_micros) FROM item)::bigint
     WHERE account_id = $1
), entry AS (
    INSERT INTO generation.ledger
           (account_id, kind, delta_micros, balance_after_micros, reference)
    SELECT $1, 'charge', -price_micros, $2::bigint - (sum(price_micros) OVER earlier)::bigint,
           'job:' || job_id
      FROM item
    WINDOW earlier AS (ORDER BY place)
     ORDER BY place
), job AS (
    INSERT INTO generation.job
           (job_id, account_id, dedupe_key, kind, canvas_id, node_id, delivers, max_attempts,
            price_micros, channel, priority, status)
    SELECT job_id, $1, dedupe_key, kind, canvas_id, node_id, delivers, max_attempts, price_micros,
           channel, priority, status
      FROM item
     ORDER BY place
    RETURNING key, job_id
), made AS (
    SELECT job.key, item.*
      FROM job
      JOIN item ON item.job_id = job.job_id
), payload AS (
    INSERT INTO generation.payload (job_key, digest, params, position_x, position_y)
    SELECT key, digest, params, x, y
      FROM made
), event AS (
    INSERT INTO generation.event (job_key, kind)
    SELECT key, 'enqueued'
      FROM made
)
INSERT INTO generation.summary
       (job_key, job_id, account_id, kind, source, label, price_micros, canvas_id, node_id)
SELECT key, job_id, $1, kind, '{SOURCE}', label, price_micros, canvas_id, node_id
  FROM made
RETURNING job_key, job_id
"""

# So often a job goes on after its worker was lost, asking its providers what became of its calls.
MAX_RESUMES = 3
_RESUMED = "ARRAY(SELECT key FROM expired WHERE is_resumed)"


def _pending(condition: str) -> str:
    """The jobs of a channel that are pending, of those for which a condition holds."""
    return f"""SELECT * FROM (
                         SELECT key, lease_token, priority, available_at
                           FROM generation.job
                          WHERE status = 'pending'
                            AND job.channel = channel.name
                            AND {condition}
                            AND available_at <= now()
                          ORDER BY priority, available_at, key
                          LIMIT greatest(channel.room, 0)
                            FOR UPDATE SKIP LOCKED) AS part"""


# Expired leases first, then what is pending, in channels that have room, for all claims together.
# What expired with no attempts left fails and is refunded here (GN8); one whose providers can be
# asked goes on, which is no new attempt (GN30). A claim's row makes a repeat take nothing anew,
# also one that runs at the same time: it waits for the row, and finds it taken (GN6). Nobody waits
# for an account: what cannot be refunded now fails at the next look.
CLAIM = f"""
WITH item AS (
    SELECT item.*,
           (SELECT count(*) > 0
              FROM generation.claim
             WHERE claim.worker_id = item.worker_id
               AND claim.claim_id = item.claim_id) AS is_known
      FROM unnest($1::text[], $2::text[], $3::bigint[], $4::interval[])
           WITH ORDINALITY AS item (worker_id, claim_id, wanted, lease, place)
), asked AS (
    SELECT worker_id, claim_id, lease,
           sum(wanted) OVER before - wanted AS first,
           sum(wanted) OVER before          AS next
      FROM item
     WHERE NOT is_known
    WINDOW before AS (ORDER BY place)
), total AS (
    SELECT max(next)::bigint AS wanted
      FROM asked
), channel AS (
    SELECT name, since, wanted,
           least(wanted,
                 capacity - CASE WHEN capacity IS NOT NULL
                                 THEN (SELECT count(*)
                                         FROM generation.job
                                        WHERE status = 'running'
                                          AND job.channel = open.name)
                            END) AS room
      FROM unnest($5::text[], $6::bigint[], $7::timestamptz[]) AS open (name, capacity, since)
     CROSS JOIN total
     WHERE wanted IS NOT NULL
), expired AS (
    SELECT late.*
      FROM channel
     CROSS JOIN LATERAL (SELECT key, lease_token, account_id,
                                attempt < max_attempts AS has_attempts,
                                coalesce(resumes < {MAX_RESUMES}
                                         AND (SELECT bool_and(request_id IS NOT NULL
                                                              OR outcome IN ('failed', 'cancelled'))
                                                     AND bool_or(request_id IS NOT NULL)
                                                FROM generation.provider_call
                                               WHERE job_key = job.key), false) AS is_resumed
                           FROM generation.job
                          WHERE status = 'running'
                            AND job.channel = channel.name
                            AND lease_until <= now()
                          ORDER BY lease_until
                          LIMIT channel.wanted
                            FOR UPDATE SKIP LOCKED) AS late
     LIMIT (SELECT wanted FROM total)
), ready AS (
    SELECT next.*
      FROM channel
     CROSS JOIN LATERAL ({_pending("priority < 0")}
                         UNION ALL
                         {_pending("priority = 0 AND available_at >= channel.since")}
                         UNION ALL
                         {_pending("priority > 0")}) AS next
     ORDER BY priority, available_at, key
     LIMIT (SELECT wanted FROM total)
           - (SELECT count(*) FROM expired WHERE has_attempts OR is_resumed)
), found AS (
    SELECT key, lease_token + 1 AS lease_token, row_number() OVER () - 1 AS number
      FROM (SELECT key, lease_token
              FROM expired
             WHERE has_attempts
                OR is_resumed
             UNION ALL
            SELECT key, lease_token
              FROM ready) AS either
), given AS (
    SELECT found.*, asked.worker_id, asked.claim_id, asked.lease
      FROM found
      JOIN asked
        ON found.number >= asked.first
       AND found.number < asked.next
), registered AS (
    INSERT INTO generation.claim (worker_id, claim_id, job_keys, lease_tokens)
    SELECT worker_id, claim_id, array_agg(key), array_agg(lease_token)
      FROM given
     GROUP BY worker_id, claim_id
     ORDER BY worker_id, claim_id
        ON CONFLICT (worker_id, claim_id) DO NOTHING
    RETURNING worker_id, claim_id
), kept AS (
    SELECT given.*
      FROM given
      JOIN registered USING (worker_id, claim_id)
), claimed AS (
    UPDATE generation.job
       SET status      = 'running',
           worker_id   = kept.worker_id,
           attempt     = attempt + CASE WHEN job.key = ANY({_RESUMED}) THEN 0 ELSE 1 END,
           resumes     = resumes + CASE WHEN job.key = ANY({_RESUMED}) THEN 1 ELSE 0 END,
           lease_token = lease_token + 1,
           lease_until = now() + kept.lease,
           claimed_at  = now()
      FROM unnest(ARRAY(SELECT key FROM kept), ARRAY(SELECT worker_id FROM kept),
                  ARRAY(SELECT claim_id FROM kept), ARRAY(SELECT lease FROM kept))
           AS kept (key, worker_id, claim_id, lease)
     WHERE job.key = kept.key
       AND job.key = ANY(ARRAY(SELECT key FROM kept))
    RETURNING job.key, job_id, lease_token, account_id, kind, canvas_id, attempt, channel,
              available_at, priority, kept.worker_id, kept.claim_id
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
    SELECT key, 'claimed', worker_id, lease_token
      FROM claimed
), payable AS (
    SELECT account_id
      FROM generation.account
     WHERE account_id = ANY(ARRAY(SELECT account_id
                                    FROM expired
                                   WHERE NOT (has_attempts OR is_resumed)))
     ORDER BY account_id
       FOR NO KEY UPDATE SKIP LOCKED
), failed AS (
    UPDATE generation.job
       SET status      = 'failed',
           worker_id   = NULL,
           lease_until = NULL,
           deliver_at  = CASE WHEN node_id IS NOT NULL THEN now() END
     WHERE key = ANY(ARRAY(SELECT key
                             FROM expired
                            WHERE NOT (has_attempts OR is_resumed)
                              AND account_id = ANY(ARRAY(SELECT account_id FROM payable))))
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
SELECT ARRAY(SELECT ARRAY[worker_id, claim_id]
               FROM item
              WHERE is_known
              UNION
             (SELECT ARRAY[worker_id, claim_id]
                FROM given
              EXCEPT
              SELECT ARRAY[worker_id, claim_id]
                FROM registered)) AS repeats,
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


# Alone in its statement, before the claim counts what is running. A channel that another claim
# counts is left out.
LOCK_CHANNELS = """
SELECT name
  FROM generation.channel
 WHERE name = ANY($1::text[])
 ORDER BY name
   FOR NO KEY UPDATE SKIP LOCKED
"""

MAKE_CHANNELS = """
INSERT INTO generation.channel (name)
SELECT unnest($1::text[])
    ON CONFLICT (name) DO NOTHING
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
class Asked:
    """A claim of a worker: for how many jobs, and for how long."""

    worker_id: str
    claim_id: str
    limit: int
    lease: timedelta


@dataclass(frozen=True)
class Claimed:
    """What claims did: the jobs that each got, by worker and claim, and what else came of them.

    `repeats` are the claims that had got theirs before. `failed` are the jobs that had no attempts
    left, their accounts by their ids; `newest` is when the last job without a priority of each
    channel began to wait. `is_partial` says that another claim had a channel.
    """

    jobs: dict[tuple[str, str], list[ClaimedJob]]
    repeats: set[tuple[str, str]]
    failed: dict[str, str]
    is_to_deliver: bool
    newest: dict[str, datetime]
    is_partial: bool


class LockedAccount:
    """One account whose jobs and money nobody else changes until the block ends."""

    def __init__(self, connection: Connection, account_id: str, balance_micros: int) -> None:
        self._connection = connection
        self._account_id = account_id
        self.balance_micros = balance_micros

    async def gather(self, dedupe_keys: Sequence[str]) -> Gathered:
        """What decides about new jobs of these dedupe keys."""
        rows = await self._connection.fetch(GATHER, self._account_id, dedupe_keys)
        known = {
            row["dedupe_key"]: Known(row["key"], row["digest"])
            for row in rows
            if row["key"] is not None
        }
        return Gathered(rows[0]["waiting"], rows[0]["under_way"], known)

    async def enqueue(self, orders: Sequence[Order]) -> dict[str, int]:
        """Charges the account and stores the jobs, in this order; their keys by their ids."""
        drafts = [order.draft for order in orders]
        targets = [draft.target for draft in drafts]
        positions = [target.position if target else Position() for target in targets]
        rows = await self._connection.fetch(
            ENQUEUE,
            self._account_id,
            self.balance_micros,
            [order.job_id for order in orders],
            [draft.dedupe_key for draft in drafts],
            [draft.kind for draft in drafts],
            [draft.canvas_id for draft in drafts],
            [target.node_id if target else None for target in targets],
            [target is not None for target in targets],
            [KINDS[draft.kind].max_attempts for draft in drafts],
            [draft.price_micros for draft in drafts],
            [draft.channel for draft in drafts],
            [draft.priority for draft in drafts],
            ["pending" if order.is_pending else "waiting" for order in orders],
            [draft.digest for draft in drafts],
            [draft.params for draft in drafts],
            [position.x for position in positions],
            [position.y for position in positions],
            [draft.label for draft in drafts],
        )
        return {row["job_id"]: row["job_key"] for row in rows}

    async def entries(self, job_id: str) -> dict[str, Entry]:
        """Charge and refund of a job, as far as there are any, by their kinds."""
        return await entries_of_job(self._connection, job_id)

    async def charge(self, job_id: str, price_micros: int, *, entry_id: str) -> Entry:
        """Charges the account for a job that is not stored."""
        return await charge(
            self._connection, self._account_id, job_id, price_micros, entry_id=entry_id
        )

    async def refund(self, job_id: str) -> str:
        """Gives back what a job that is not stored was charged; the entry's id."""
        return await refund(self._connection, job_id)


class QueueStore:
    """The queue of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Whether those that have limits are there for claims to take turns on.
        self._has_channels = False

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
        self, asked: Sequence[Asked], channels: Sequence[Channel] = EVERYWHERE
    ) -> Claimed:
        """Takes jobs that expired, or are pending, out of these channels, for different claims."""
        arguments = (
            [claim.worker_id for claim in asked],
            [claim.claim_id for claim in asked],
            [claim.limit for claim in asked],
            [claim.lease for claim in asked],
        )
        limited = [channel.name for channel in channels if channel.capacity is not None]
        if not limited:
            rows = await self._database.fetch(CLAIM, *arguments, *_columns(channels))
            return _claimed(rows, is_partial=False)
        if not self._has_channels:
            await self._database.execute(MAKE_CHANNELS, limited)
            self._has_channels = True
        async with self._database.transaction() as connection:
            locked = {row["name"] for row in await connection.fetch(LOCK_CHANNELS, limited)}
            counted = [
                channel
                for channel in channels
                if channel.capacity is None or channel.name in locked
            ]
            rows = await connection.fetch(CLAIM, *arguments, *_columns(counted))
        return _claimed(rows, is_partial=len(counted) < len(channels))

    async def claimed_before(self, worker_id: str, claim_id: str) -> list[ClaimedJob]:
        """What a claim got, as far as its leases live."""
        rows = await self._database.fetch(READ_CLAIM, worker_id, claim_id)
        return [_claimed_job(row) for row in rows]


def _claimed(rows: Sequence[asyncpg.Record], *, is_partial: bool) -> Claimed:
    claimed = sorted((row for row in rows if row["key"] is not None), key=lambda row: row["key"])
    newest: dict[str, datetime] = {}
    jobs: dict[tuple[str, str], list[ClaimedJob]] = {}
    for row in claimed:
        jobs.setdefault((row["worker_id"], row["claim_id"]), []).append(_claimed_job(row))
        if row["priority"] == 0:
            newest[row["channel"]] = max(row["available_at"], newest.get(row["channel"], EVER))
    return Claimed(
        jobs=jobs,
        repeats=set(map(tuple, rows[0]["repeats"])),
        failed=dict(rows[0]["failed"]),
        is_to_deliver=rows[0]["is_to_deliver"],
        newest=newest,
        is_partial=is_partial,
    )


_CLAIMED_COLUMNS = tuple(field.name for field in fields(ClaimedJob))


def _claimed_job(row: asyncpg.Record) -> ClaimedJob:
    return ClaimedJob(*map(row.__getitem__, _CLAIMED_COLUMNS))


def _columns(
    channels: Sequence[Channel],
) -> tuple[list[str], list[int | None], list[datetime]]:
    return (
        [channel.name for channel in channels],
        [channel.capacity for channel in channels],
        [channel.since for channel in channels],
    )
