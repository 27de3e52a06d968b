"""Remembers which jobs wait for a turn of their account, and gives them one (GN27)."""

from collections.abc import Sequence
from dataclasses import dataclass

from servicekit.postgres import Database

# Which of these accounts have jobs that wait for a turn.
READ_WAITING = """
SELECT asked.account_id
  FROM unnest($1::text[]) AS asked (account_id)
 CROSS JOIN LATERAL (SELECT
                       FROM generation.job
                      WHERE job.account_id = asked.account_id
                        AND status = 'waiting'
                      LIMIT 1) AS waiting
"""

# The next accounts with jobs that wait for a turn, by one step of the index for each.
LIST_WAITING = """
WITH RECURSIVE account AS (
    (SELECT account_id, 1 AS place
       FROM generation.job
      WHERE status = 'waiting'
        AND account_id > $1
      ORDER BY account_id
      LIMIT 1)
    UNION ALL
    SELECT next.account_id, account.place + 1
      FROM account
     CROSS JOIN LATERAL (SELECT account_id
                           FROM generation.job
                          WHERE status = 'waiting'
                            AND job.account_id > account.account_id
                          ORDER BY account_id
                          LIMIT 1) AS next
     WHERE account.place < $2
)
SELECT account_id
  FROM account
"""

# Alone in its statement: whoever asks for jobs of these accounts has done so or waits. Nobody waits
# here: an account that is locked is come back to.
LOCK_ACCOUNTS = """
SELECT account_id
  FROM generation.account
 WHERE account_id = ANY($1::text[])
 ORDER BY account_id
   FOR NO KEY UPDATE SKIP LOCKED
"""

# No job is waited for: one that its owner takes back just now needs no turn.
GIVE_TURNS = """
UPDATE generation.job
   SET status       = 'pending',
       available_at = statement_timestamp()
 WHERE key = ANY(ARRAY(
       SELECT next.key
         FROM unnest($1::text[]) AS asked (account_id)
        CROSS JOIN LATERAL
              (SELECT key
                 FROM generation.job
                WHERE job.account_id = asked.account_id
                  AND status = 'waiting'
                ORDER BY priority, key
                LIMIT greatest($2::bigint - (SELECT count(*)
                                               FROM generation.job
                                              WHERE job.account_id = asked.account_id
                                                AND status IN ('pending', 'running')), 0)
                  FOR NO KEY UPDATE SKIP LOCKED) AS next))
RETURNING key
"""

# What is before the jobs of an account that nobody has claimed. Those that wait for a turn come
# after all that are pending, which are counted once; more than 1,000 are not counted.
READ_PLACES = """
WITH queue AS MATERIALIZED (
    SELECT used.channel,
           (SELECT count(*)
              FROM (SELECT
                      FROM generation.job AS other
                     WHERE other.status = 'pending'
                       AND other.channel = used.channel
                     LIMIT 1000) AS pending) AS pending
      FROM (SELECT DISTINCT channel
              FROM generation.job
             WHERE account_id = $1
               AND status = 'waiting') AS used
)
SELECT job_id, ahead, running
  FROM (SELECT job_id, channel,
               (SELECT count(*)
                  FROM (SELECT
                          FROM generation.job AS other
                         WHERE other.status = 'pending'
                           AND other.channel = mine.channel
                           AND (other.priority, other.available_at, other.key)
                             < (mine.priority, mine.available_at, mine.key)
                         LIMIT 1000) AS before) AS ahead
          FROM generation.job AS mine
         WHERE account_id = $1
           AND status IN ('pending', 'running')
           AND status <> 'running'
         UNION ALL
        SELECT job_id, channel,
               (SELECT pending FROM queue WHERE queue.channel = mine.channel)
               + row_number() OVER (PARTITION BY channel ORDER BY priority, key) - 1
          FROM generation.job AS mine
         WHERE account_id = $1
           AND status = 'waiting') AS place
 CROSS JOIN LATERAL (SELECT count(*) AS running
                       FROM (SELECT
                               FROM generation.job AS other
                              WHERE other.status = 'running'
                                AND other.channel = place.channel
                              LIMIT 1000) AS busy) AS busy
"""


@dataclass(frozen=True)
class Place:
    """How many jobs are before one, counted to 1,000, and how many run in its channel."""

    ahead: int
    running: int


class TurnsStore:
    """The turns of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, account_ids: Sequence[str]) -> list[str]:
        """Those of the accounts that have jobs waiting for a turn."""
        rows = await self._database.fetch(READ_WAITING, account_ids)
        return [row["account_id"] for row in rows]

    async def next_waiting(self, after: str, limit: int) -> list[str]:
        """Up to `limit` accounts after one in order that have jobs waiting for a turn."""
        rows = await self._database.fetch(LIST_WAITING, after, limit)
        return [row["account_id"] for row in rows]

    async def places(self, account_id: str) -> dict[str, Place]:
        """Where the jobs of an account stand that nobody has claimed, by their ids."""
        rows = await self._database.fetch(READ_PLACES, account_id)
        return {row["job_id"]: Place(row["ahead"], row["running"]) for row in rows}

    async def give(self, account_ids: Sequence[str], limit: int) -> tuple[int, set[str]]:
        """Gives the first of their jobs the turns that are free, an account having `limit`.

        How many got one, and the accounts that somebody else had locked.
        """
        async with self._database.transaction() as connection:
            rows = await connection.fetch(LOCK_ACCOUNTS, account_ids)
            locked = [row["account_id"] for row in rows]
            given = await connection.fetch(GIVE_TURNS, locked, limit)
        return len(given), set(account_ids).difference(locked)
