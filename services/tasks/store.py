"""Remembers tasks: what was asked, what is said of it, the text so far."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, fields

import asyncpg

from servicekit.postgres import Connection, Database
from servicekit.watches import Asked, Change, Found, columns_from_asked, found_from_rows
from services.tasks.domain.tasks import (
    CREATED,
    SHOWN_PROMPT_LENGTH,
    Choice,
    LogEntry,
    Order,
    Status,
    Task,
)
from services.tasks.domain.text import Delta, Reset, Terminal, TextEvent

# Who waits for work hears of it here; without a payload.
READY_CHANNEL = "tasks_ready"
# Who watches accounts hears of changes here; the payload is the task's id and its account.
CHANGED_CHANNEL = "tasks_changed"
# Who reads a text hears of changes here; the payload is the task's id.
TEXT_CHANNEL = "tasks_text"
# Tells that what people see of a task has changed. An account that is longer is told by looking.
TELL_CHANGED = f"pg_notify('{CHANGED_CHANNEL}', task_id || ' ' || left(account_id, 1000))"

_BESIDE = ("prompt", "text")
_COLUMNS = ",\n       ".join(field.name for field in fields(Task) if field.name not in _BESIDE)
# Lists show the beginning of the prompt, and no text.
_SHOWN = f"""(SELECT left(prompt, {SHOWN_PROMPT_LENGTH})
          FROM tasks.prompt
         WHERE task_key = task.key) AS prompt,
       NULL::text                   AS text"""

LOCK_ACCOUNT = """
INSERT INTO tasks.account (account_id)
VALUES ($1)
    ON CONFLICT (account_id)
    DO UPDATE SET account_id = excluded.account_id
RETURNING waiting
"""

READ_TASK_OF_REQUEST = f"""
SELECT {_COLUMNS},
       (SELECT prompt FROM tasks.prompt WHERE task_key = task.key) AS prompt,
       (SELECT text FROM tasks.result WHERE task_key = task.key)   AS text,
       digest
  FROM tasks.task
 WHERE account_id = $1
   AND request_id = $2
"""

ADD_TASK = f"""
WITH added AS (
    INSERT INTO tasks.task
           (account_id, task_id, request_id, digest, type, model, canvas_id, node_id,
            client_operation_id, stage, progress)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    RETURNING {_COLUMNS}, account_id
), asked AS (
    INSERT INTO tasks.prompt (task_key, prompt)
    SELECT key, $15
      FROM added
), logged AS (
    INSERT INTO tasks.log (task_key, level, code, message)
    SELECT key, $12, $13, $14
      FROM added
), counted AS (
    UPDATE tasks.account
       SET waiting = waiting + 1
     WHERE account_id = $1
)
SELECT {_COLUMNS},
       $15::text  AS prompt,
       NULL::text AS text,
       pg_notify('{READY_CHANNEL}', ''),
       {TELL_CHANGED}
  FROM added
"""

READ_TASK = f"""
SELECT {_COLUMNS},
       (SELECT prompt FROM tasks.prompt WHERE task_key = task.key) AS prompt,
       (SELECT text FROM tasks.result WHERE task_key = task.key)   AS text
  FROM tasks.task
 WHERE task_id = $2
   AND account_id = $1
"""

READ_LOG = """
SELECT level,
       code,
       message,
       at
  FROM tasks.log
 WHERE task_key = $1
 ORDER BY key
"""

READ_STANDING = """
SELECT key,
       last_sequence
  FROM tasks.task
 WHERE task_id = $2
   AND account_id = $1
"""

# Before the events: of a task that is over when this reads it, the next reads all events.
READ_STATES = """
SELECT key,
       status,
       last_sequence,
       CASE WHEN status IN ('succeeded', 'failed')
            THEN (SELECT text FROM tasks.result WHERE task_key = task.key)
        END AS text
  FROM tasks.task
 WHERE key = ANY($1::bigint[])
"""

READ_EVENTS = """
SELECT asked.task_key,
       event.sequence,
       event.attempt,
       event.content
  FROM unnest($1::bigint[], $2::bigint[]) AS asked (task_key, after),
       LATERAL (SELECT sequence, attempt, content
                  FROM tasks.text_event
                 WHERE text_event.task_key = asked.task_key
                   AND text_event.sequence > asked.after
                OFFSET 0) AS event
 ORDER BY asked.task_key, event.sequence
"""


# Those whose account somebody watches.
READ_NEWEST = f"""
SELECT {_COLUMNS},
       {_SHOWN},
       account_id
  FROM tasks.task
 WHERE task_id = ANY($1::text[])
   AND account_id = ANY($2::text[])
"""

# Always a row, for the snapshot. What a database that this one was restored from called a later
# transaction is none of ours.
READ_SINCE = f"""
SELECT pg_current_snapshot()::text AS snapshot,
       found.*
  FROM (SELECT) AS one
  LEFT JOIN (SELECT asked.place - 1 AS place,
                    task.*
               FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
                    WITH ORDINALITY
                    AS asked (account_id, live_since, ended_since, after_in, after_key, place)
              CROSS JOIN LATERAL
                    (SELECT {_COLUMNS},
                            {_SHOWN},
                            account_id,
                            NULL AS ended_in
                       FROM tasks.task
                      WHERE task.account_id = asked.account_id
                        AND status IN ('queued', 'running')
                        AND NOT pg_visible_in_snapshot(changed_in, asked.live_since::pg_snapshot)
                      UNION ALL
                    (SELECT {_COLUMNS},
                            {_SHOWN},
                            account_id,
                            ended_in::text
                       FROM tasks.task
                      WHERE task.account_id = asked.account_id
                        AND (ended_in, key) > (asked.after_in::xid8, asked.after_key)
                        AND ended_in IS NOT NULL
                        AND ended_in < pg_snapshot_xmax(pg_current_snapshot())
                        AND NOT pg_visible_in_snapshot(ended_in, asked.ended_since::pg_snapshot)
                      ORDER BY task.ended_in, key
                      LIMIT $6)) AS task) AS found
    ON true
"""


def list_tasks(choice: Choice) -> tuple[str, list[str]]:
    """The statement that lists the chosen tasks, and its parameters from $4 on.

    One statement for each kind of choice, so that each has the plan of its own index.
    """
    named = {"canvas_id": choice.canvas_id, "node_id": choice.node_id}
    chosen = {column: value for column, value in named.items() if value is not None}
    conditions = [f"{column} = ${place}" for place, column in enumerate(chosen, start=4)]
    if choice.active_only:
        conditions.append("status IN ('queued', 'running')")
    where = "\n   AND ".join(["account_id = $1", "key < $2", *conditions])
    statement = f"""
SELECT {_COLUMNS},
       {_SHOWN}
  FROM tasks.task
 WHERE {where}
 ORDER BY key DESC
 LIMIT $3
"""
    return statement, list(chosen.values())


@dataclass(frozen=True)
class Known:
    """The task that a request made, and the digest of that request."""

    task: Task
    digest: bytes


@dataclass(frozen=True)
class Standing:
    """A task whose text somebody wants to read, and the last event that it has."""

    key: int
    task_id: str
    last_sequence: int


@dataclass(frozen=True)
class Reading:
    """The events of a task after some place, and how it ended, if it is over.

    Of a task that is over it holds all events, up to `last_sequence`.
    """

    events: list[TextEvent]
    last_sequence: int
    ending: Terminal | None


class Locked:
    """One account, to which nobody else adds tasks until the block ends."""

    def __init__(self, connection: Connection, account_id: str, waiting: int) -> None:
        self._connection = connection
        self._account_id = account_id
        self.waiting = waiting

    async def known(self, request_id: str) -> Known | None:
        """What a request made before."""
        row = await self._connection.fetchrow(READ_TASK_OF_REQUEST, self._account_id, request_id)
        return Known(_task(row), row["digest"]) if row else None

    async def add(self, task_id: str, order: Order, model: str) -> Task:
        """Stores a new task for a model, and wakes the workers."""
        row = await self._connection.fetchrow(
            ADD_TASK,
            self._account_id,
            task_id,
            order.request_id,
            order.digest(),
            order.type,
            model,
            order.canvas_id,
            order.node_id,
            order.client_operation_id,
            *astuple(CREATED),
            order.prompt,
        )
        assert row is not None
        return _task(row)


class TasksStore:
    """The tasks of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def locked(self, account_id: str) -> AsyncIterator[Locked]:
        """The account for adding a task, in a transaction that is committed at the end."""
        async with self._database.transaction() as connection:
            waiting = await connection.fetchval(LOCK_ACCOUNT, account_id)
            yield Locked(connection, account_id, waiting)

    async def task(self, account_id: str, task_id: str) -> tuple[Task, list[LogEntry]] | None:
        """A task of the account with its log, oldest line first."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_TASK, account_id, task_id)
            if row is None:
                return None
            lines = await connection.fetch(READ_LOG, row["key"])
        return _task(row), [LogEntry(**line) for line in lines]

    async def page(self, account_id: str, choice: Choice, before: int, limit: int) -> list[Task]:
        """Up to `limit` tasks, newest first, with keys below `before`, prompts cut, no texts."""
        statement, values = list_tasks(choice)
        rows = await self._database.fetch(statement, account_id, before, limit, *values)
        return [_task(row) for row in rows]

    async def newest(
        self, task_ids: Sequence[str], account_ids: Sequence[str]
    ) -> list[Change[Task]]:
        """The tasks of those ids that belong to those accounts, prompts cut, no texts."""
        rows = await self._database.fetch(READ_NEWEST, task_ids, account_ids)
        return [_change(row) for row in rows]

    async def since(self, asked: Sequence[Asked], limit: int) -> Found[Task]:
        """What changed; of what ended at most `limit` of each account."""
        rows = await self._database.fetch(READ_SINCE, *columns_from_asked(asked), limit)
        changes = [_change(row) if row["key"] is not None else None for row in rows]
        return found_from_rows(asked, limit, rows, changes)

    async def standing(self, account_id: str, task_id: str) -> Standing | None:
        """A task of the account for reading its text."""
        row = await self._database.fetchrow(READ_STANDING, account_id, task_id)
        return Standing(row["key"], task_id, row["last_sequence"]) if row else None

    async def texts(self, after: Mapping[int, int]) -> dict[int, Reading]:
        """The events of tasks by key after the given sequence numbers, as they are now.

        A task that is gone is left out.
        """
        keys = list(after)
        async with self._database.connection() as connection:
            states = await connection.fetch(READ_STATES, keys)
            rows = await connection.fetch(READ_EVENTS, keys, list(after.values()))
        events: dict[int, list[TextEvent]] = {key: [] for key in keys}
        for row in rows:
            events[row["task_key"]].append(_event(row))
        return {
            state["key"]: Reading(
                events=events[state["key"]],
                last_sequence=state["last_sequence"],
                ending=_ending(state["status"], state["text"]),
            )
            for state in states
        }


def _task(row: asyncpg.Record) -> Task:
    return Task(**{field.name: row[field.name] for field in fields(Task)})


def _change(row: asyncpg.Record) -> Change[Task]:
    return Change(row["account_id"], row["task_id"], _task(row))


def _event(row: asyncpg.Record) -> TextEvent:
    if row["content"] is None:
        return Reset(row["sequence"], row["attempt"])
    return Delta(row["sequence"], row["content"])


def _ending(status: Status, text: str | None) -> Terminal | None:
    return Terminal(status, text) if status in ("succeeded", "failed") else None
