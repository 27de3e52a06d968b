"""Remembers what providers were asked for, and what became of it (GN30, GN31)."""

from collections.abc import Sequence
from dataclasses import fields

from servicekit.postgres import Database
from services.generation.domain.calls import Begun, Call, Outcome, UncertainCall

# The lease has to hold: what is begun is paid. A call that the provider is known not to have
# carried out can be begun again, and so can one whose beginning this attempt was not told.
BEGIN_CALL = """
WITH held AS (
    SELECT key
      FROM generation.job
     WHERE job_id = $1
       AND lease_token = $2
       AND worker_id = $4
       AND lease_until > now()
       FOR NO KEY UPDATE
), begun AS (
    INSERT INTO generation.provider_call AS call (job_key, number, model, lease_token)
    SELECT key, $3, $5, $2
      FROM held
        ON CONFLICT (job_key, number) DO UPDATE
       SET model       = excluded.model,
           lease_token = excluded.lease_token,
           begun_at    = excluded.begun_at,
           request_id  = NULL,
           outcome     = NULL,
           detail      = NULL,
           settled_at  = NULL
     WHERE call.outcome IN ('failed', 'cancelled')
        OR call.outcome IS NULL AND call.request_id IS NULL
                                AND call.lease_token = excluded.lease_token
    RETURNING job_key
), event AS (
    INSERT INTO generation.event (job_key, kind, worker_id, lease_token, detail)
    SELECT job_key, 'provider_called', $4, $2, $3::integer::text
      FROM begun
)
SELECT EXISTS (SELECT FROM begun) AS is_new,
       call.request_id
  FROM held
  LEFT JOIN generation.provider_call AS call
    ON call.job_key = held.key
   AND call.job_key = (SELECT key FROM held)
   AND call.number = $3
"""

# Facts of the newest attempt are taken whether its lease holds or not.
ACCEPT_CALL = """
WITH accepted AS (
    UPDATE generation.provider_call
       SET request_id = $4
     WHERE job_key = (SELECT key FROM generation.job WHERE job_id = $1 AND lease_token = $2)
       AND number = $3
       AND outcome IS NULL
    RETURNING job_key
)
INSERT INTO generation.event (job_key, kind, lease_token, detail)
SELECT job_key, 'provider_accepted', $2, $3::integer::text || ' ' || $4
  FROM accepted
"""

SETTLE_CALL = """
WITH settled AS (
    UPDATE generation.provider_call
       SET outcome    = $4,
           detail     = $5,
           settled_at = now()
     WHERE job_key = (SELECT key FROM generation.job WHERE job_id = $1 AND lease_token = $2)
       AND number = $3
       AND outcome IS NULL
    RETURNING job_key
)
INSERT INTO generation.event (job_key, kind, lease_token, detail)
SELECT job_key, 'provider_settled', $2, concat_ws(' ', $3::integer, $4, $5)
  FROM settled
"""

LIST_UNCERTAIN = """
SELECT call.job_key AS key, job.job_id, call.number, job.account_id, call.model, call.request_id,
       call.begun_at
  FROM generation.provider_call AS call
 CROSS JOIN LATERAL (SELECT job_id, account_id, status
                       FROM generation.job
                      WHERE key = call.job_key
                      LIMIT 1) AS job
 WHERE call.outcome IS NULL
   AND (call.job_key, call.number) < ($1, $2)
   AND job.status <> 'running'
 ORDER BY call.job_key DESC, call.number DESC
 LIMIT $3
"""

RESOLVE_CALL = """
WITH resolved AS (
    UPDATE generation.provider_call AS call
       SET outcome    = $3,
           detail     = $4,
           settled_at = now()
      FROM generation.job AS job
     WHERE job.job_id = $1
       AND job.status <> 'running'
       AND call.job_key = job.key
       AND call.job_key = (SELECT key FROM generation.job WHERE job_id = $1)
       AND call.number = $2
       AND call.outcome IS NULL
    RETURNING call.job_key
), event AS (
    INSERT INTO generation.event (job_key, kind, detail)
    SELECT job_key, 'provider_resolved', concat_ws(' ', $2::integer, $3, $4)
      FROM resolved
)
SELECT job_key
  FROM resolved
"""


class CallsStore:
    """The calls of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, worker_id: str, call: Call, model: str) -> Begun | None:
        """Takes note that a provider is about to be asked; None if the lease did not hold."""
        row = await self._database.fetchrow(
            BEGIN_CALL, call.job_id, call.lease_token, call.number, worker_id, model
        )
        if row is None:
            return None
        return Begun(row["is_new"], None if row["is_new"] else row["request_id"])

    async def accept(self, call: Call, request_id: str) -> None:
        """Takes note of what the provider calls it."""
        await self._database.execute(
            ACCEPT_CALL, call.job_id, call.lease_token, call.number, request_id
        )

    async def settle(self, call: Call, outcome: Outcome, detail: str | None) -> None:
        """Takes note of what became of it; of what is settled already nothing changes."""
        await self._database.execute(
            SETTLE_CALL, call.job_id, call.lease_token, call.number, outcome, detail
        )

    async def uncertain(self, before: Sequence[int], limit: int) -> list[UncertainCall]:
        """Up to `limit` calls whose outcome nobody knows, newest first, before one of them."""
        rows = await self._database.fetch(LIST_UNCERTAIN, *before, limit)
        names = [field.name for field in fields(UncertainCall)]
        return [UncertainCall(**{name: row[name] for name in names}) for row in rows]

    async def resolve(self, job_id: str, number: int, outcome: Outcome, note: str) -> bool:
        """Takes note of an outcome that was found out; whether the call was uncertain."""
        row = await self._database.fetchrow(RESOLVE_CALL, job_id, number, outcome, note)
        return row is not None
