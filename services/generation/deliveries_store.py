"""Remembers what has still to reach a canvas, and ends jobs once it has."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from servicekit.postgres import Database
from services.generation.domain.jobs import (
    ATTEMPT_EXPIRED,
    ENDS,
    MAX_ERROR_LENGTH,
    Output,
    Position,
    Status,
    Target,
    outputs_from_json,
)
from services.generation.wallet_store import refunds

# `deliver_at` is the lease: nobody else takes the delivery before it is over (GN12).
TAKE_DELIVERIES = """
WITH taken AS (
    UPDATE generation.job
       SET deliver_at     = now() + $2::interval,
           delivery_token = delivery_token + 1
     WHERE key = ANY(ARRAY(SELECT key
                             FROM generation.job
                            WHERE deliver_at <= now()
                            ORDER BY deliver_at
                            LIMIT $1
                              FOR UPDATE SKIP LOCKED))
    RETURNING key, job_id, account_id, canvas_id, node_id, delivers, status, lease_token,
              delivery_token
)
SELECT taken.*,
       payload.params,
       payload.position_x,
       payload.position_y,
       outcome.outputs,
       outcome.warning,
       outcome.error,
       coalesce(outcome.created_at, summary.ended_at) AS ended_at,
       summary.label
  FROM taken
  JOIN generation.payload AS payload
    ON payload.job_key = taken.key
   AND payload.job_key = ANY(ARRAY(SELECT key FROM taken))
  JOIN generation.summary AS summary
    ON summary.job_key = taken.key
   AND summary.job_key = ANY(ARRAY(SELECT key FROM taken))
  LEFT JOIN generation.outcome AS outcome
    ON outcome.job_key = taken.key
   AND outcome.lease_token = taken.lease_token
   AND outcome.job_key = ANY(ARRAY(SELECT key FROM taken))
"""

FINISH_COMPLETED = """
WITH done AS (
    UPDATE generation.job
       SET status         = 'completed',
           deliver_at     = NULL,
           delivery_token = delivery_token + 1
     WHERE key = $1
       AND delivery_token = $2
    RETURNING key
), summary AS (
    UPDATE generation.summary
       SET status     = 'completed',
           phase      = NULL,
           progress   = 100,
           warning    = $3,
           ended_at   = now(),
           updated_at = now(),
           changed_in = pg_current_xact_id(),
           ended_in   = pg_current_xact_id()
     WHERE job_key = (SELECT key FROM done)
), event AS (
    INSERT INTO generation.event (job_key, kind)
    SELECT key, 'completed'
      FROM done
)
SELECT key
  FROM done
"""

FINISH_FAILED = f"""
WITH failed AS (
    UPDATE generation.job
       SET status         = 'failed',
           deliver_at     = NULL,
           delivery_token = delivery_token + 1
     WHERE key = $1
       AND delivery_token = $2
    RETURNING key, job_id, account_id, price_micros
), {refunds("failed")}, summary AS (
    UPDATE generation.summary AS summary
       SET status          = 'failed',
           phase           = NULL,
           error           = $3,
           refund_entry_id = refunded.entry_id,
           ended_at        = now(),
           updated_at      = now(),
           changed_in      = pg_current_xact_id(),
           ended_in        = pg_current_xact_id()
      FROM refunded
     WHERE summary.job_key = $1
       AND summary.job_key = refunded.key
), event AS (
    INSERT INTO generation.event (job_key, kind, detail)
    SELECT key, 'failed', $3
      FROM failed
)
SELECT key
  FROM failed
"""

# The job had ended in a claim that found its lease over, or by its owner; only its placeholder was
# to be told.
FINISH_MARKED = """
WITH done AS (
    UPDATE generation.job
       SET deliver_at     = NULL,
           delivery_token = delivery_token + 1
     WHERE key = $1
       AND delivery_token = $2
    RETURNING key
), event AS (
    INSERT INTO generation.event (job_key, kind)
    SELECT key, 'placeholder_marked'
      FROM done
)
SELECT key
  FROM done
"""

DELAY_DELIVERY = """
UPDATE generation.job
   SET deliver_at = now() + $3::interval
 WHERE key = $1
   AND delivery_token = $2
RETURNING key
"""


@dataclass(frozen=True)
class Delivery:
    """The end of a job on its way to the canvas.

    `outputs` is None for an error. `is_over` says that the job has failed already or is cancelled,
    and only its placeholder is to be told. `token` fences this delivery, and counts them.
    """

    key: int
    token: int
    job_id: str
    account_id: str
    canvas_id: str
    target: Target | None
    prompt: str
    label: str
    outputs: tuple[Output, ...] | None
    warning: str | None
    error: str
    ended_at: datetime
    is_over: bool
    is_cancelled: bool


class DeliveriesStore:
    """The deliveries of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, limit: int, lease: timedelta) -> list[Delivery]:
        """Takes up to `limit` deliveries that are due, for the length of the lease."""
        rows = await self._database.fetch(TAKE_DELIVERIES, limit, lease)
        return [_delivery(row) for row in rows]

    async def complete(self, delivery: Delivery) -> bool:
        """Completes the job; whether the delivery was still ours."""
        return await self._finish(FINISH_COMPLETED, delivery, delivery.warning)

    async def fail(self, delivery: Delivery, error: str) -> bool:
        """Fails and refunds the job; whether the delivery was still ours."""
        return await self._finish(FINISH_FAILED, delivery, error[:MAX_ERROR_LENGTH])

    async def marked(self, delivery: Delivery) -> bool:
        """Ends the delivery of a job that was over; whether it was still ours."""
        return await self._finish(FINISH_MARKED, delivery)

    async def delay(self, delivery: Delivery, pause: timedelta) -> bool:
        """Has the delivery begin anew after a pause; whether it was still ours."""
        return await self._finish(DELAY_DELIVERY, delivery, pause)

    async def _finish(self, statement: str, delivery: Delivery, *arguments: object) -> bool:
        row = await self._database.fetchrow(statement, delivery.key, delivery.token, *arguments)
        return row is not None


def _delivery(row: asyncpg.Record) -> Delivery:
    outputs = None if row["outputs"] is None else outputs_from_json(row["outputs"])
    position = Position(row["position_x"], row["position_y"])
    return Delivery(
        key=row["key"],
        token=row["delivery_token"],
        job_id=row["job_id"],
        account_id=row["account_id"],
        canvas_id=row["canvas_id"],
        target=Target(row["node_id"], position) if row["delivers"] else None,
        prompt=json.loads(row["params"])["prompt"],
        label=row["label"],
        outputs=outputs,
        warning=row["warning"],
        error=row["error"] or ATTEMPT_EXPIRED,
        ended_at=row["ended_at"],
        is_over=row["status"] in ENDS,
        is_cancelled=row["status"] == Status.CANCELLED,
    )
