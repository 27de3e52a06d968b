"""Remembers who works on which task, and what comes of it.

Everything that a worker writes is fenced: it names the task and the owner of its claim, and
changes nothing once the task is in other hands (TK6). All times are the database's.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta

from servicekit.errors import Unavailable
from servicekit.postgres import Database
from services.tasks.domain.failures import LeaseLost
from services.tasks.domain.tasks import (
    CALLING,
    CLAIMED,
    HANDED_BACK,
    LOST,
    SUCCEEDED,
    TAKEN_OVER,
    Step,
)
from services.tasks.domain.terms import Terms
from services.tasks.store import READY_CHANNEL, TELL_CHANGED, TEXT_CHANNEL

CLAIM_SECONDS = 5.0

# Which task is next is decided here, since only one statement can take it: one whose lease has
# expired (TK7), else the oldest of the account that waits longest for its turn and does not run
# as many as it may (TK5). A row that somebody else holds is passed over; who holds it notifies.
CLAIM_TASK = f"""
WITH expired AS (
    SELECT key
      FROM tasks.task
     WHERE status = 'running'
       AND lease_until <= now()
       AND attempts - handed_back < $4
     ORDER BY lease_until
     LIMIT 1
       FOR UPDATE SKIP LOCKED
), turn AS (
    SELECT account_id
      FROM tasks.account
     WHERE waiting > 0
       AND running < $3
       AND NOT EXISTS (SELECT FROM expired)
     ORDER BY served_at
     LIMIT 1
       FOR UPDATE SKIP LOCKED
), oldest AS (
    SELECT key
      FROM tasks.task
     WHERE account_id = (SELECT account_id FROM turn)
       AND status = 'queued'
     ORDER BY key
     LIMIT 1
       FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE tasks.task
       SET status        = 'running',
           owner         = $1,
           lease_until   = clock_timestamp() + $2,
           attempts      = attempts + 1,
           -- Every attempt but the first begins with a reset.
           last_sequence = last_sequence + CASE WHEN attempts > 0 THEN 1 ELSE 0 END,
           stage         = $5,
           progress      = $6,
           started_at    = coalesce(started_at, now()),
           updated_at    = now(),
           changed_in    = pg_current_xact_id()
     WHERE key = coalesce((SELECT key FROM expired), (SELECT key FROM oldest))
    RETURNING key, task_id, account_id, model, attempts, handed_back, last_sequence, text_bytes
), reset AS (
    INSERT INTO tasks.text_event (task_key, sequence, attempt)
    SELECT key, last_sequence, attempts
      FROM claimed
     WHERE attempts > 1
), logged AS (
    INSERT INTO tasks.log (task_key, level, code, message)
    SELECT claimed.key, line.level, line.code, line.message
      FROM claimed,
           (VALUES (false, $7::text, $8::text, $9::text), (true, $10, $11, $12))
           AS line (taken_over, level, code, message)
     WHERE line.taken_over = EXISTS (SELECT FROM expired)
), counted AS (
    UPDATE tasks.account
       SET waiting   = waiting - 1,
           running   = running + 1,
           served_at = clock_timestamp()
     WHERE account_id = (SELECT account_id FROM claimed)
       AND NOT EXISTS (SELECT FROM expired)
    RETURNING waiting
)
SELECT key,
       task_id,
       model,
       attempts,
       $4 - (attempts - handed_back) + 1 AS attempts_left,
       last_sequence,
       text_bytes,
       (SELECT prompt FROM tasks.prompt WHERE task_key = claimed.key) AS prompt,
       CASE WHEN attempts > 1
            THEN pg_notify('{TEXT_CHANNEL}', task_id)
        END,
       CASE WHEN (SELECT waiting FROM counted) > 0
            THEN pg_notify('{READY_CHANNEL}', '')
        END,
       {TELL_CHANGED}
  FROM claimed
"""

RENEW_LEASE = """
UPDATE tasks.task
   SET lease_until = clock_timestamp() + $3
 WHERE key = $1
   AND owner = $2
   AND lease_until > clock_timestamp()
RETURNING key
"""

TAKE_STEP = f"""
WITH stepped AS (
    UPDATE tasks.task
       SET stage      = $3,
           progress   = coalesce($4, progress),
           updated_at = now(),
           changed_in = pg_current_xact_id()
     WHERE key = $1
       AND owner = $2
       AND lease_until > clock_timestamp()
    RETURNING key, task_id, account_id
), logged AS (
    INSERT INTO tasks.log (task_key, level, code, message)
    SELECT key, $5, $6, $7
      FROM stepped
)
SELECT key,
       {TELL_CHANGED}
  FROM stepped
"""

# Told again after no answer it changes nothing: the numbers have moved on (TK9).
APPEND_TEXT = f"""
WITH held AS (
    UPDATE tasks.task
       SET last_sequence = last_sequence + cardinality($4::text[]),
           text_bytes    = text_bytes + $5
     WHERE key = $1
       AND owner = $2
       AND last_sequence = $3
       AND lease_until > clock_timestamp()
    RETURNING key, task_id, attempts, last_sequence
), appended AS (
    INSERT INTO tasks.text_event (task_key, sequence, attempt, content)
    SELECT held.key, $3 + piece.place, held.attempts, piece.content
      FROM held,
           unnest($4::text[]) WITH ORDINALITY AS piece (content, place)
)
SELECT last_sequence,
       pg_notify('{TEXT_CHANNEL}', task_id)
  FROM held
"""

READ_PLACE = """
SELECT last_sequence
  FROM tasks.task
 WHERE key = $1
   AND owner = $2
   AND lease_until > clock_timestamp()
"""

# The lease may have expired: as long as nobody else has the task, its end stands. The text is
# that of the last attempt; no append is under way, since its owner is the one who writes this.
FINISH_TASK = f"""
WITH ended AS (
    UPDATE tasks.task
       SET status      = $8,
           stage       = $3,
           progress    = coalesce($4, progress),
           error       = CASE WHEN $8 = 'failed' THEN $7 END,
           owner       = NULL,
           lease_until = NULL,
           ended_at    = now(),
           updated_at  = now(),
           changed_in  = pg_current_xact_id(),
           ended_in    = pg_current_xact_id()
     WHERE key = $1
       AND owner = $2
    RETURNING key, task_id, account_id, attempts, status
), kept AS (
    INSERT INTO tasks.result (task_key, text)
    SELECT key, coalesce(text, '')
      FROM (SELECT ended.key,
                   ended.status,
                   (SELECT string_agg(content, '' ORDER BY sequence)
                      FROM tasks.text_event
                     WHERE task_key = ended.key
                       AND attempt = ended.attempts) AS text
              FROM ended) AS whole
     WHERE text IS NOT NULL
        OR status = 'succeeded'
), logged AS (
    INSERT INTO tasks.log (task_key, level, code, message)
    SELECT key, $5, $6, $7
      FROM ended
), counted AS (
    UPDATE tasks.account
       SET running = running - 1
     WHERE account_id = (SELECT account_id FROM ended)
    RETURNING waiting
)
SELECT key,
       pg_notify('{TEXT_CHANNEL}', task_id),
       {TELL_CHANGED},
       CASE WHEN (SELECT waiting FROM counted) > 0
            THEN pg_notify('{READY_CHANNEL}', '')
        END
  FROM ended
"""

# A task that is out of attempts is taken to be ended, not to be worked on (TK7).
TAKE_LOST_TASK = """
UPDATE tasks.task
   SET owner       = $1,
       lease_until = clock_timestamp() + $2
 WHERE key = (SELECT key
                FROM tasks.task
               WHERE status = 'running'
                 AND lease_until <= now()
                 AND attempts - handed_back >= $3
               ORDER BY lease_until
               LIMIT 1
                 FOR UPDATE SKIP LOCKED)
RETURNING key,
          task_id
"""

HAND_BACK_TASK = f"""
WITH back AS (
    UPDATE tasks.task
       SET status      = 'queued',
           stage       = $3,
           progress    = $4,
           handed_back = handed_back + 1,
           owner       = NULL,
           lease_until = NULL,
           updated_at  = now(),
           changed_in  = pg_current_xact_id()
     WHERE key = $1
       AND owner = $2
    RETURNING key, task_id, account_id
), logged AS (
    INSERT INTO tasks.log (task_key, level, code, message)
    SELECT key, $5, $6, $7
      FROM back
), counted AS (
    UPDATE tasks.account
       SET waiting = waiting + 1,
           running = running - 1
     WHERE account_id = (SELECT account_id FROM back)
)
SELECT key,
       pg_notify('{READY_CHANNEL}', ''),
       {TELL_CHANGED}
  FROM back
"""


@dataclass(frozen=True)
class Claim:
    """A task in the hands of one owner, and where its text stands.

    `attempts_left` counts this attempt too.
    """

    key: int
    task_id: str
    owner: str
    model: str
    prompt: str
    attempt: int
    attempts_left: int
    last_sequence: int
    text_bytes: int


class WorkStore:
    """The tasks of all accounts, for workers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, owner: str, terms: Terms) -> Claim | None:
        """The next task, or None if there is none now. `owner` is unique to this claim.

        Raises `Unavailable` after 5 seconds; a task may have been claimed then, until its lease
        expires.
        """
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                row = await self._database.fetchrow(
                    CLAIM_TASK,
                    owner,
                    terms.lease,
                    terms.running_per_account,
                    terms.attempts,
                    CLAIMED.stage,
                    CLAIMED.progress,
                    *(CLAIMED.level, CLAIMED.code, CLAIMED.message),
                    *(TAKEN_OVER.level, TAKEN_OVER.code, TAKEN_OVER.message),
                )
        except TimeoutError:
            raise Unavailable("The database takes too long to find a task.") from None
        if row is None:
            return None
        return Claim(
            key=row["key"],
            task_id=row["task_id"],
            owner=owner,
            model=row["model"],
            prompt=row["prompt"],
            attempt=row["attempts"],
            attempts_left=row["attempts_left"],
            last_sequence=row["last_sequence"],
            text_bytes=row["text_bytes"],
        )

    async def renew(self, claim: Claim, lease: timedelta) -> None:
        """Has the lease last so long from now on. Raises `LeaseLost`."""
        await self._fenced(RENEW_LEASE, claim.key, claim.owner, lease)

    async def call_model(self, claim: Claim) -> None:
        """Says that the model is being asked. Raises `LeaseLost`."""
        await self._fenced(TAKE_STEP, claim.key, claim.owner, *astuple(CALLING))

    async def append(self, claim: Claim, last_sequence: int, contents: Sequence[str]) -> int:
        """Adds deltas after `last_sequence`, and answers the number of the last one.

        May be repeated after `Unavailable`: it adds them once. Raises `LeaseLost`.
        """
        size_bytes = sum(len(content.encode()) for content in contents)
        fence = (claim.key, claim.owner)
        row = await self._database.fetchrow(
            APPEND_TEXT, *fence, last_sequence, contents, size_bytes
        )
        row = row or await self._database.fetchrow(READ_PLACE, *fence)
        if row is None or row["last_sequence"] != last_sequence + len(contents):
            raise LeaseLost
        place: int = row["last_sequence"]
        return place

    async def succeed(self, claim: Claim) -> None:
        """Ends a task with the text that was added. Raises `LeaseLost`."""
        await self._fenced(FINISH_TASK, claim.key, claim.owner, *astuple(SUCCEEDED), "succeeded")

    async def fail(self, claim: Claim, last: Step) -> None:
        """Ends a task without success; its text so far is kept as a draft. Raises `LeaseLost`."""
        await self._fenced(FINISH_TASK, claim.key, claim.owner, *astuple(last), "failed")

    async def hand_back(self, claim: Claim) -> None:
        """Lets another worker start the task anew; does not count as an attempt (TK8).

        Raises `LeaseLost`.
        """
        await self._fenced(HAND_BACK_TASK, claim.key, claim.owner, *astuple(HANDED_BACK))

    async def fail_lost(self, owner: str, terms: Terms) -> str | None:
        """Fails one task whose last attempt was lost, and answers its id; None if none is.

        Raises `LeaseLost` if it then is in other hands.
        """
        row = await self._database.fetchrow(TAKE_LOST_TASK, owner, terms.lease, terms.attempts)
        if row is None:
            return None
        await self._fenced(FINISH_TASK, row["key"], owner, *astuple(LOST), "failed")
        task_id: str = row["task_id"]
        return task_id

    async def _fenced(self, statement: str, key: int, owner: str, *arguments: object) -> None:
        if await self._database.fetchrow(statement, key, owner, *arguments) is None:
            raise LeaseLost
