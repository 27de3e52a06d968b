"""Remembers canvases: one row an object, two statements for the edits of many."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from json import loads
from typing import Any

import asyncpg

from servicekit.errors import Unavailable
from servicekit.postgres import Connection, Database, translated
from services.canvas.batch import Found, Outcome, Version
from services.canvas.domain.canonical import canonical
from services.canvas.domain.edits import Touched, ends_of
from services.canvas.domain.leases import LEASE, Lease
from services.canvas.domain.limits import Limits, growth
from services.canvas.domain.media import Known
from services.canvas.domain.mutation import Receipt
from services.canvas.domain.operations import Canvas, Head, Stored

MAX_CHANGES = 1_000
MAX_CHANGES_BYTES = 4 * 1024 * 1024

# The row alone: rows read in a statement that waited for the lock could be older than the lock.
LOCK_CANVAS = """
SELECT key
  FROM canvas.canvas
 WHERE account_id = $1
   AND canvas_id = $2
   FOR UPDATE
"""

# Where there is no row to lock, requests for one canvas take turns on this.
LOCK_ABSENT_CANVAS = "SELECT pg_advisory_xact_lock(hashtextextended($1 || '/' || $2, 0))"

# Who waits for a canvas waits for its account too, in this order.
LOCK_USAGE = """
SELECT
  FROM canvas.usage
 WHERE account_id = $1
   FOR NO KEY UPDATE
"""

# One statement, one snapshot: the objects are those of their canvas's revision. Each canvas has its
# stretches of the ids in $10, one a kind. OFFSET 0 and ORDER BY keep the planner to one canvas
# after the other, and to the index in that order even where it knows of no rows.
GATHER = """
WITH asked AS MATERIALIZED (
    SELECT *
      FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $5::integer[],
                  $6::integer[], $7::integer[], $8::integer[], $9::integer[])
           WITH ORDINALITY
           AS asked (account_id, canvas_id, start, receipts, nodes, ends, connections, removed,
                     leases, canvas)
), head AS MATERIALIZED (
    SELECT asked.*,
           found.*
      FROM asked
     CROSS JOIN LATERAL (
           SELECT key, revision, content_hash, fields, node_count, next_order, size_bytes,
                  lease_version
             FROM canvas.canvas
            WHERE account_id = asked.account_id
              AND canvas_id = asked.canvas_id
           OFFSET 0) AS found
)
SELECT 'now' AS what, 0::bigint AS canvas, '' AS id, 0::bigint AS place, 0::bigint AS hash,
       NULL AS body, NULL::bytea AS digest, NULL::bytea AS result, NULL AS token,
       clock_timestamp() AS at, NULL::bigint AS key, NULL::integer AS node_count,
       NULL::bigint AS next_order, NULL::bigint AS size_bytes, NULL::bigint AS lease_version
UNION ALL
SELECT 'head', canvas, '', revision, content_hash, fields, NULL, NULL, NULL, NULL,
       key, node_count, next_order, size_bytes, lease_version
  FROM head
UNION ALL
SELECT 'receipt', canvas, id, place, 0, NULL, digest, result, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
  FROM asked
 CROSS JOIN LATERAL (
       SELECT mutation_id AS id, revision AS place, digest, result
         FROM canvas.receipt
        WHERE account_id = asked.account_id
          AND canvas_id = asked.canvas_id
          AND mutation_id = ANY(($10::text[])[asked.start + 1 : asked.receipts])
       OFFSET 0) AS receipt
UNION ALL
SELECT 'node', canvas, id, place, hash, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM head
 CROSS JOIN LATERAL (
       SELECT id, place, hash, body
         FROM canvas.node
        WHERE canvas_key = head.key
          AND id = ANY(($10::text[])[head.receipts + 1 : head.nodes])
       OFFSET 0) AS node
UNION ALL
SELECT 'end', canvas, id, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM head
 CROSS JOIN LATERAL (
       SELECT id
         FROM canvas.node
        WHERE canvas_key = head.key
          AND id = ANY(($10::text[])[head.nodes + 1 : head.ends])
       OFFSET 0) AS node
UNION ALL
SELECT 'connection', canvas, id, place, hash, body, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
  FROM head
 CROSS JOIN LATERAL (
       SELECT id, place, hash, body
         FROM canvas.connection
        WHERE canvas_key = head.key
          AND id = ANY(($10::text[])[head.ends + 1 : head.connections])
        ORDER BY id) AS connection
UNION ALL
SELECT 'connection', canvas, id, place, hash, body, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
  FROM head
 CROSS JOIN LATERAL (
       SELECT id, place, hash, body
         FROM canvas.connection
        WHERE canvas_key = head.key
          AND from_node = ANY(($10::text[])[head.connections + 1 : head.removed])
        ORDER BY from_node) AS connection
UNION ALL
SELECT 'connection', canvas, id, place, hash, body, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
  FROM head
 CROSS JOIN LATERAL (
       SELECT id, place, hash, body
         FROM canvas.connection
        WHERE canvas_key = head.key
          AND to_node = ANY(($10::text[])[head.connections + 1 : head.removed])
        ORDER BY to_node) AS connection
UNION ALL
SELECT 'lease', canvas, id, 0, 0, session_id, NULL, NULL, token, expires_at,
       NULL, NULL, NULL, NULL, NULL
  FROM head
 CROSS JOIN LATERAL (
       SELECT node_id AS id, session_id, token, expires_at
         FROM canvas.lease
        WHERE canvas_key = head.key
          AND node_id = ANY(($10::text[])[head.removed + 1 : head.leases])
       OFFSET 0) AS lease
"""

READ_MEDIA = """
SELECT 'resource' AS what, asked.account_id, asked.id, NULL AS resource_id
  FROM unnest($1::text[], $2::text[]) AS asked (account_id, id)
 CROSS JOIN LATERAL (
       SELECT account_id
         FROM canvas.resource
        WHERE resource_id = asked.id
       OFFSET 0) AS resource
 WHERE resource.account_id = asked.account_id
UNION ALL
SELECT 'asset', asked.account_id, asked.id, resource_id
  FROM unnest($3::text[], $4::text[]) AS asked (account_id, id)
 CROSS JOIN LATERAL (
       SELECT resource_id
         FROM canvas.asset
        WHERE account_id = asked.account_id
          AND asset_id = ANY(ARRAY[asked.id])
        ORDER BY asset_id) AS asset
"""

INSERT_CANVAS = """
WITH usage AS (
    INSERT INTO canvas.usage (account_id)
    VALUES ($1)
        ON CONFLICT (account_id) DO NOTHING
)
INSERT INTO canvas.canvas
       (account_id, canvas_id, revision, fields, title, node_count, next_order,
        size_bytes, content_hash, created_at, updated_at)
VALUES ($1, $2, 1, '{}', '', 0, 0, 0, 0, $3, $3)
    ON CONFLICT (account_id, canvas_id) DO NOTHING
RETURNING key
"""

# Each canvas all or nothing: only as it was read, at its revision, with no lease given since, and
# only if its account's limits allow what grows (that of all its canvases here together). What
# somebody else has locked is left out: nobody waits for it, and there is no deadlock.
SAVE = """
WITH asked AS MATERIALIZED (
    SELECT *
      FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[],
                  $6::integer[], $7::bigint[], $8::bigint[], $9::text[], $10::text[],
                  $11::integer[], $12::bigint[], $13::bigint[], $14::bigint[])
           AS asked (key, found_revision, found_lease_version, account_id, canvas_id,
                     canvases, json_bytes, revision, fields, title,
                     node_count, next_order, size_bytes, content_hash)
), current AS MATERIALIZED (
    SELECT asked.*
      FROM asked
     CROSS JOIN LATERAL (
           SELECT
             FROM canvas.canvas
            WHERE key = asked.key
              AND revision = asked.found_revision
              AND lease_version = asked.found_lease_version
              FOR NO KEY UPDATE SKIP LOCKED) AS locked
), growing AS MATERIALIZED (
    SELECT account_id, canvases, json_bytes
      FROM (SELECT account_id,
                   sum(canvases)::integer  AS canvases,
                   sum(json_bytes)::bigint AS json_bytes
              FROM current
             GROUP BY account_id) AS grown
     CROSS JOIN LATERAL (
           SELECT
             FROM canvas.usage
            WHERE account_id = grown.account_id
              FOR NO KEY UPDATE SKIP LOCKED) AS locked
), allowed AS (
    UPDATE canvas.usage
       SET canvases   = usage.canvases + growing.canvases,
           json_bytes = usage.json_bytes + growing.json_bytes
      FROM growing
     WHERE usage.account_id = ANY(ARRAY(SELECT account_id FROM growing))
       AND usage.account_id = growing.account_id
       AND (growing.canvases <= 0 OR usage.canvases + growing.canvases <= $15)
       AND (growing.json_bytes <= 0 OR usage.json_bytes + growing.json_bytes <= $16)
    RETURNING usage.account_id
), head AS (
    UPDATE canvas.canvas
       SET revision     = current.revision,
           fields       = current.fields,
           title        = current.title,
           node_count   = current.node_count,
           next_order   = current.next_order,
           size_bytes   = current.size_bytes,
           content_hash = current.content_hash,
           updated_at   = $17
      FROM current
      JOIN allowed USING (account_id)
     WHERE canvas.key = current.key
    RETURNING canvas.key, canvas.account_id, canvas.canvas_id
), nodes_gone AS (
    DELETE FROM canvas.node
     WHERE canvas_key = ANY($18::bigint[])
       AND id = ANY($19::text[])
       AND (canvas_key, id) IN (SELECT key, gone.id
                                  FROM unnest($18::bigint[], $19::text[]) AS gone (key, id)
                                  JOIN head USING (key))
), leases_gone AS (
    DELETE FROM canvas.lease
     WHERE canvas_key = ANY($18::bigint[])
       AND node_id = ANY($19::text[])
       AND (canvas_key, node_id) IN (SELECT key, gone.id
                                       FROM unnest($18::bigint[], $19::text[]) AS gone (key, id)
                                       JOIN head USING (key))
), nodes_written AS (
    INSERT INTO canvas.node (canvas_key, id, place, hash, body)
    SELECT key, id, place, written.hash, body
      FROM unnest($20::bigint[], $21::text[], $22::bigint[], $23::bigint[], $24::text[])
           AS written (key, id, place, hash, body)
      JOIN head USING (key)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET hash = excluded.hash, body = excluded.body, place = excluded.place
), connections_gone AS (
    DELETE FROM canvas.connection
     WHERE canvas_key = ANY($25::bigint[])
       AND id = ANY($26::text[])
       AND (canvas_key, id) IN (SELECT key, gone.id
                                  FROM unnest($25::bigint[], $26::text[]) AS gone (key, id)
                                  JOIN head USING (key))
), connections_written AS (
    INSERT INTO canvas.connection (canvas_key, id, place, hash, from_node, to_node, body)
    SELECT key, id, place, written.hash, from_node, to_node, body
      FROM unnest($27::bigint[], $28::text[], $29::bigint[], $30::bigint[], $31::text[],
                  $32::text[], $33::text[])
           AS written (key, id, place, hash, from_node, to_node, body)
      JOIN head USING (key)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET hash      = excluded.hash,
                      body      = excluded.body,
                      place     = excluded.place,
                      from_node = excluded.from_node,
                      to_node   = excluded.to_node
), receipts AS (
    INSERT INTO canvas.receipt
           (account_id, canvas_id, mutation_id, digest, revision, result, created_at)
    SELECT account_id, canvas_id, mutation_id, digest, revision, result, $17
      FROM unnest($34::bigint[], $35::text[], $36::bytea[], $37::bigint[], $38::bytea[])
           AS done (key, mutation_id, digest, revision, result)
      JOIN head USING (key)
), changes AS (
    INSERT INTO canvas.change (canvas_key, revision, mutation_id, operations, at)
    SELECT key, revision, mutation_id, operations, $17
      FROM unnest($34::bigint[], $37::bigint[], $35::text[], $39::text[])
           AS done (key, revision, mutation_id, operations)
      JOIN head USING (key)
)
SELECT key,
       account_id IN (SELECT account_id FROM growing) AS is_free,
       account_id IN (SELECT account_id FROM allowed) AS is_allowed
  FROM current
"""

DELETE_CANVAS = """
WITH gone AS (
    DELETE FROM canvas.canvas
     WHERE account_id = $1
       AND canvas_id = $2
    RETURNING key, size_bytes
)
UPDATE canvas.usage
   SET canvases   = canvases - 1,
       json_bytes = json_bytes - (SELECT size_bytes FROM gone)
 WHERE account_id = $1
   AND EXISTS (SELECT FROM gone)
RETURNING (SELECT key FROM gone)
"""

_SUMMARY_COLUMNS = """key,
       canvas_id,
       title,
       revision,
       node_count,
       content_hash,
       created_at,
       updated_at"""

# An account has at most a thousand or so, and an index that kept their order would be written with
# every edit.
LIST_CANVASES = f"""
SELECT {_SUMMARY_COLUMNS}
  FROM canvas.canvas
 WHERE account_id = $1
   AND (updated_at, key) < ($2, $3)
 ORDER BY updated_at DESC, key DESC
 LIMIT $4
"""

# One statement, one snapshot: the canvas, its nodes, its connections, told apart by their count.
# The content is left out where its etag is the known one.
READ_CANVAS = f"""
WITH head AS MATERIALIZED (
    SELECT {_SUMMARY_COLUMNS},
           fields,
           revision || '-' || key <> $3 AS is_news
      FROM canvas.canvas
     WHERE account_id = $1
       AND canvas_id = $2
), nodes AS (
    SELECT body
      FROM canvas.node
     WHERE canvas_key = (SELECT key FROM head WHERE is_news)
     ORDER BY place
), connections AS (
    SELECT body
      FROM canvas.connection
     WHERE canvas_key = (SELECT key FROM head WHERE is_news)
     ORDER BY place
)
SELECT fields AS body, is_news, {_SUMMARY_COLUMNS}
  FROM head
UNION ALL
SELECT body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM nodes
UNION ALL
SELECT body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM connections
"""

READ_SYNC_STATUS = """
WITH head AS MATERIALIZED (
    SELECT key, revision, content_hash
      FROM canvas.canvas
     WHERE account_id = $1
       AND canvas_id = $2
)
SELECT head.key,
       head.revision,
       head.content_hash,
       clock_timestamp() AS now,
       agent.task_id,
       agent.state,
       agent.since,
       lease.node_id,
       lease.session_id,
       lease.expires_at
  FROM head
  LEFT JOIN canvas.agent AS agent ON agent.canvas_key = (SELECT key FROM head)
  LEFT JOIN canvas.lease AS lease ON lease.canvas_key = (SELECT key FROM head)
                                 AND lease.expires_at > clock_timestamp()
"""

# At most $4 changes and $5 bytes of them.
LIST_CHANGES = """
SELECT canvas.key,
       canvas.revision AS head,
       canvas.content_hash,
       change.revision,
       change.mutation_id,
       change.operations,
       change.at
  FROM canvas.canvas AS canvas
  LEFT JOIN LATERAL (
       SELECT *,
              sum(octet_length(operations)) OVER (ORDER BY revision) AS bytes_so_far
         FROM canvas.change
        WHERE canvas_key = canvas.key
          AND revision > $3
        ORDER BY revision
        LIMIT $4
       ) AS change ON change.bytes_so_far <= $5
 WHERE canvas.account_id = $1
   AND canvas.canvas_id = $2
 ORDER BY change.revision
"""

HOLD_LEASE = """
WITH head AS (
    UPDATE canvas.canvas
       SET lease_version = lease_version + 1
     WHERE account_id = $1
       AND canvas_id = $2
    RETURNING key, clock_timestamp() AS now
)
INSERT INTO canvas.lease AS lease (canvas_key, node_id, session_id, token, expires_at)
SELECT key, $3, $4, $5, now + $6::interval
  FROM head
 WHERE EXISTS (SELECT FROM canvas.node WHERE canvas_key = (SELECT key FROM head) AND id = $3)
    ON CONFLICT (canvas_key, node_id)
    DO UPDATE SET session_id = excluded.session_id,
                  token      = CASE WHEN lease.session_id = $4
                                     AND lease.expires_at > (SELECT now FROM head)
                                    THEN lease.token
                                    ELSE excluded.token END,
                  expires_at = excluded.expires_at
            WHERE lease.session_id = $4
               OR lease.expires_at <= (SELECT now FROM head)
RETURNING token, expires_at, (SELECT now FROM head) AS now
"""

RENEW_LEASE = """
UPDATE canvas.lease
   SET expires_at = clock_timestamp() + $6::interval
 WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2)
   AND node_id = $3
   AND session_id = $4
   AND token = $5
   AND expires_at > clock_timestamp()
RETURNING token, expires_at, clock_timestamp() AS now
"""

READ_LEASE = """
SELECT session_id, token, expires_at, clock_timestamp() AS now
  FROM canvas.lease
 WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2)
   AND node_id = $3
"""

RELEASE_LEASE = """
WITH released AS (
    DELETE FROM canvas.lease
     WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2)
       AND node_id = $3
       AND session_id = $4
       AND token = $5
    RETURNING node_id
)
SELECT clock_timestamp() AS now,
       EXISTS (SELECT FROM released) AS was_held
"""

ADMIT_AGENT = """
INSERT INTO canvas.agent AS agent (canvas_key, task_id, state, since)
SELECT key, $3, 'queued', clock_timestamp()
  FROM canvas.canvas
 WHERE account_id = $1
   AND canvas_id = $2
    ON CONFLICT (canvas_key)
    DO UPDATE SET task_id = agent.task_id
RETURNING task_id, state, since
"""

SET_AGENT_STATE = """
UPDATE canvas.agent
   SET state = CASE WHEN task_id = $3 THEN $4 ELSE state END,
       since = CASE WHEN task_id = $3 AND state <> $4 THEN clock_timestamp() ELSE since END
 WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2)
RETURNING task_id, state, since
"""

RELEASE_AGENT = """
DELETE FROM canvas.agent
 WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2)
   AND task_id = $3
"""

PRUNE_RECEIPTS = """
DELETE FROM canvas.receipt
 WHERE ctid = ANY(ARRAY(
       SELECT ctid
         FROM canvas.receipt
        WHERE created_at < now() - $1::interval
        LIMIT $2))
"""

PRUNE_CHANGES = """
DELETE FROM canvas.change
 WHERE ctid = ANY(ARRAY(
       SELECT ctid
         FROM canvas.change
        WHERE at < now() - $1::interval
        LIMIT $2))
"""

READ_SOME_NODES = """
SELECT canvas.revision,
       ARRAY(SELECT node.body
               FROM canvas.node
              WHERE node.canvas_key = canvas.key
                AND node.id = ANY($3::text[])
              ORDER BY node.place) AS bodies
  FROM canvas.canvas
 WHERE canvas.account_id = $1
   AND canvas.canvas_id = $2
"""


def etag(revision: int, incarnation: int) -> str:
    """Tells revisions apart, and canvases of the same id."""
    return f"{revision}-{incarnation}"


@dataclass(frozen=True)
class Summary:
    """What lists say of a canvas; `content_hash` is 64 bits, not negative."""

    incarnation: int
    canvas_id: str
    title: str
    revision: int
    node_count: int
    content_hash: int
    created_at: datetime
    updated_at: datetime

    @property
    def etag(self) -> str:
        """Equal for equal content (CV15)."""
        return etag(self.revision, self.incarnation)


@dataclass(frozen=True)
class Whole:
    """A canvas with its content as JSON texts."""

    summary: Summary
    fields: str
    nodes: list[str]
    connections: list[str]


@dataclass(frozen=True)
class Held:
    """A lease, and the time by the database."""

    lease: Lease
    now: datetime

    @property
    def is_live(self) -> bool:
        """Whether it still holds."""
        return self.lease.expires_at > self.now


@dataclass(frozen=True)
class Agent:
    """An agent run that has a canvas."""

    task_id: str
    state: str
    since: datetime


@dataclass(frozen=True)
class SyncStatus:
    """What a session compares with what it has; `leases` are those that hold now."""

    incarnation: int
    revision: int
    content_hash: int
    now: datetime
    leases: list[Lease]
    agent: Agent | None


@dataclass(frozen=True)
class LoggedChange:
    """What one request did; `operations` is a JSON array."""

    revision: int
    mutation_id: str
    operations: str
    at: datetime


@dataclass(frozen=True)
class Log:
    """The changes after a revision that are kept, and where the canvas is."""

    revision: int
    incarnation: int
    content_hash: int
    changes: list[LoggedChange]

    @property
    def etag(self) -> str:
        """That of the canvas now."""
        return etag(self.revision, self.incarnation)


@dataclass(frozen=True)
class Asked:
    """What is to be gathered of a canvas: receipts of mutations, and what those touch."""

    account_id: str
    canvas_id: str
    mutation_ids: list[str]
    touched: Touched


@dataclass(frozen=True)
class Decided:
    """What requests for a canvas came to, and what it was found as."""

    account_id: str
    canvas_id: str
    found: Found
    outcome: Outcome


class Saved(Enum):
    """Whether a canvas was saved; else nothing of it is written.

    `STALE` is one that somebody else changed or has now, or that is to be made; `EXCEEDED` one
    whose account may not grow so much.
    """

    YES = auto()
    STALE = auto()
    EXCEEDED = auto()


class Session:
    """Canvases, over one connection to the database."""

    def __init__(self, connection: Connection, *, is_locked: bool) -> None:
        self._connection = connection
        self._is_locked = is_locked

    async def gather(self, asked: Sequence[Asked]) -> list[Found]:
        """What mutations touch, of each canvas all of one revision; receipts of those committed."""
        ids: list[str] = []
        places: list[list[int]] = []
        for each in asked:
            place = [len(ids)]
            touched = each.touched
            for some in (
                each.mutation_ids,
                touched.nodes,
                touched.ends,
                touched.connections,
                touched.removed_nodes,
                touched.written_nodes,
            ):
                ids += some
                place.append(len(ids))
            places.append(place)
        rows = await self._connection.fetch(
            GATHER,
            [each.account_id for each in asked],
            [each.canvas_id for each in asked],
            *_columns(places, 7),
            ids,
        )
        canvases = [_Canvas() for _ in asked]
        # The first row of the statement.
        now: datetime = rows[0]["at"]
        for row in rows[1:]:
            canvases[row["canvas"] - 1].add(row)
        return [
            canvas.found(each.canvas_id, now) for canvas, each in zip(canvases, asked, strict=True)
        ]

    async def media(
        self, resources: Sequence[tuple[str, str]], assets: Sequence[tuple[str, str]]
    ) -> dict[str, Known]:
        """Which of some resources and assets, each with its account, the accounts have."""
        rows = await self._connection.fetch(
            READ_MEDIA, *_columns(resources, 2), *_columns(assets, 2)
        )
        return {
            account_id: Known(
                resources=frozenset(row["id"] for row in its_rows if row["what"] == "resource"),
                assets={
                    row["id"]: row["resource_id"] for row in its_rows if row["what"] == "asset"
                },
            )
            for account_id, its_rows in _by_account(rows).items()
        }

    async def save(self, decided: Sequence[Decided], limits: Limits) -> list[Saved]:
        """Writes what requests came to, each canvas all or nothing; what became of each.

        A canvas is only made, and only waited for, by one who has its place locked.
        """
        writes = _Writes()
        keys: list[int | None] = []
        for each in decided:
            version = each.found.version
            if self._is_locked and each.outcome.done:
                version = version or await self._made(each)
                await self._connection.execute(LOCK_USAGE, each.account_id)
            keys.append(version.key if version else None)
            if version and each.outcome.done:
                writes.add(version, each)
        rows = []
        if writes.heads:
            now = decided[0].found.now
            rows = await self._connection.fetch(SAVE, *writes.arguments(limits, now))
        saved = {row["key"]: _saved(row) for row in rows}
        return [
            saved.get(key, Saved.STALE) if each.outcome.done else Saved.YES
            for key, each in zip(keys, decided, strict=True)
        ]

    async def _made(self, decided: Decided) -> Version | None:
        """A canvas that is still empty; None if somebody else made it."""
        key = await self._connection.fetchval(
            INSERT_CANVAS, decided.account_id, decided.canvas_id, decided.found.now
        )
        return Version(key, revision=1, lease_version=0) if key is not None else None

    async def hold(
        self, account_id: str, canvas_id: str, node_id: str, session_id: str, token: str
    ) -> Held | None:
        """Leases a node's text to a session; None if there is no such node, or another has it.

        `token` is what a new lease gets; one that the session has already keeps its own.
        """
        row = await self._connection.fetchrow(
            HOLD_LEASE, account_id, canvas_id, node_id, session_id, token, LEASE
        )
        return _held(node_id, session_id, row) if row else None

    async def renew(
        self, account_id: str, canvas_id: str, node_id: str, session_id: str, token: str
    ) -> Held | None:
        """Extends a lease that holds, None if it is over or another's."""
        row = await self._connection.fetchrow(
            RENEW_LEASE, account_id, canvas_id, node_id, session_id, token, LEASE
        )
        return _held(node_id, session_id, row) if row else None

    async def lease(self, account_id: str, canvas_id: str, node_id: str) -> Held | None:
        """The lease of a node's text, whether it still holds or not."""
        row = await self._connection.fetchrow(READ_LEASE, account_id, canvas_id, node_id)
        return _held(node_id, row["session_id"], row) if row else None


class Line:
    """A connection that is kept from one canvas to the next, and given back if something fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held = AsyncExitStack()
        self._connection: Connection | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Session]:
        """Canvases as they are; others may change them meanwhile."""
        async with self._connected() as connection:
            yield Session(connection, is_locked=False)

    async def give_back(self) -> None:
        """Holds no connection any more. Never fails."""
        self._connection = None
        # One that is lost on its way back: the pool makes another, and what was done is done.
        with suppress(Unavailable):
            await self._held.aclose()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with translated():
            try:
                if self._connection is None:
                    self._connection = await self._held.enter_async_context(
                        self._database.connection()
                    )
                yield self._connection
            except BaseException:
                await self.give_back()
                raise


class CanvasStore:
    """The canvases of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """A line to the database, for as long as the block lasts."""
        line = Line(self._database)
        try:
            yield line
        finally:
            await line.give_back()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Session]:
        """Canvases as they are; others may change them meanwhile."""
        async with self._database.connection() as connection:
            yield Session(connection, is_locked=False)

    @asynccontextmanager
    async def locked(self, account_id: str, canvas_id: str) -> AsyncIterator[Session]:
        """A canvas, or its place, that nobody else changes, in a transaction of the block."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(LOCK_CANVAS, account_id, canvas_id) is None:
                await connection.execute(LOCK_ABSENT_CANVAS, account_id, canvas_id)
                await connection.fetchval(LOCK_CANVAS, account_id, canvas_id)
            yield Session(connection, is_locked=True)

    async def delete(self, account_id: str, canvas_id: str) -> int | None:
        """Deletes a canvas; its incarnation, None if there was none."""
        row = await self._database.fetchrow(DELETE_CANVAS, account_id, canvas_id)
        return row["key"] if row is not None else None

    async def page(
        self, account_id: str, before: tuple[datetime, int], limit: int
    ) -> list[Summary]:
        """Up to `limit` canvases, newest change first, from before a place on."""
        rows = await self._database.fetch(LIST_CANVASES, account_id, *before, limit)
        return [_summary(row) for row in rows]

    async def read(
        self, account_id: str, canvas_id: str, *, known_etag: str
    ) -> Whole | Summary | None:
        """A whole canvas, all of one revision; only its summary if it has the known etag."""
        rows = await self._database.fetch(READ_CANVAS, account_id, canvas_id, known_etag)
        if not rows:
            return None
        head = rows[0]
        if not head["is_news"]:
            return _summary(head)
        nodes = rows[1 : 1 + head["node_count"]]
        connections = rows[1 + head["node_count"] :]
        return Whole(
            _summary(head),
            head["body"],
            [row["body"] for row in nodes],
            [row["body"] for row in connections],
        )

    async def sync_status(self, account_id: str, canvas_id: str) -> SyncStatus | None:
        """Where a canvas is."""
        rows = await self._database.fetch(READ_SYNC_STATUS, account_id, canvas_id)
        if not rows:
            return None
        first = rows[0]
        return SyncStatus(
            incarnation=first["key"],
            revision=first["revision"],
            content_hash=_unsigned(first["content_hash"]),
            now=first["now"],
            leases=[
                Lease(row["node_id"], row["session_id"], "", row["expires_at"])
                for row in rows
                if row["node_id"] is not None
            ],
            agent=_agent(first) if first["task_id"] is not None else None,
        )

    async def log(self, account_id: str, canvas_id: str, after: int) -> Log | None:
        """The changes after a revision, as many as may be asked for at once."""
        rows = await self._database.fetch(
            LIST_CHANGES, account_id, canvas_id, after, MAX_CHANGES, MAX_CHANGES_BYTES
        )
        if not rows:
            return None
        return Log(
            revision=rows[0]["head"],
            incarnation=rows[0]["key"],
            content_hash=_unsigned(rows[0]["content_hash"]),
            changes=[
                LoggedChange(row["revision"], row["mutation_id"], row["operations"], row["at"])
                for row in rows
                if row["revision"] is not None
            ],
        )

    async def release_lease(
        self, account_id: str, canvas_id: str, node_id: str, session_id: str, token: str
    ) -> tuple[bool, datetime]:
        """Ends a lease, if it is the session's by that token; whether, and the database's time."""
        row = await self._database.fetchrow(
            RELEASE_LEASE, account_id, canvas_id, node_id, session_id, token
        )
        assert row is not None
        return row["was_held"], row["now"]

    async def admit_agent(self, account_id: str, canvas_id: str, task_id: str) -> Agent | None:
        """Takes a canvas for a run if nobody has it; who has it then, None without a canvas."""
        row = await self._database.fetchrow(ADMIT_AGENT, account_id, canvas_id, task_id)
        return _agent(row) if row else None

    async def set_agent_state(
        self, account_id: str, canvas_id: str, task_id: str, state: str
    ) -> Agent | None:
        """Says a state of a run, if it has the canvas; who has it then, None if nobody has."""
        row = await self._database.fetchrow(SET_AGENT_STATE, account_id, canvas_id, task_id, state)
        return _agent(row) if row else None

    async def release_agent(self, account_id: str, canvas_id: str, task_id: str) -> None:
        """Gives a canvas back, if the run has it."""
        await self._database.execute(RELEASE_AGENT, account_id, canvas_id, task_id)

    async def prune(self, *, receipts: timedelta, changes: timedelta, limit: int) -> int:
        """Forgets up to `limit` receipts and changes that are older than that; how many."""
        return await self._database.delete(
            PRUNE_RECEIPTS, receipts, limit
        ) + await self._database.delete(PRUNE_CHANGES, changes, limit)

    async def some_nodes(
        self, account_id: str, canvas_id: str, node_ids: list[str]
    ) -> tuple[int, list[str]] | None:
        """The revision of a canvas, and the JSON texts of some of its nodes at it."""
        row = await self._database.fetchrow(READ_SOME_NODES, account_id, canvas_id, node_ids)
        return (row["revision"], row["bodies"]) if row else None


def _agent(row: asyncpg.Record) -> Agent:
    return Agent(row["task_id"], row["state"], row["since"])


@dataclass
class _Canvas:
    """One of several canvases, as its rows come."""

    receipts: dict[str, Receipt] = field(default_factory=dict)
    nodes: dict[str, Stored | None] = field(default_factory=dict)
    connections: dict[str, Stored | None] = field(default_factory=dict)
    ends: set[str] = field(default_factory=set)
    leases: dict[str, Lease] = field(default_factory=dict)
    head: Head | None = None
    version: Version | None = None

    def add(self, row: asyncpg.Record) -> None:
        object_id = row["id"]
        match row["what"]:
            case "head":
                self.head = _head(row)
                self.version = Version(row["key"], row["place"], row["lease_version"])
            case "receipt":
                self.receipts[object_id] = Receipt(row["digest"], row["place"], row["result"])
            case "node":
                self.nodes[object_id] = _stored(row)
            case "connection":
                self.connections[object_id] = _stored(row)
            case "end":
                self.ends.add(object_id)
            case "lease":
                self.leases[object_id] = Lease(object_id, row["body"], row["token"], row["at"])

    def found(self, canvas_id: str, now: datetime) -> Found:
        canvas = Canvas(canvas_id, self.head, self.nodes, self.connections, frozenset(self.ends))
        return Found(self.receipts, canvas, self.leases, self.version, now)


class _Writes:
    """Rows of each kind that `SAVE` writes."""

    def __init__(self) -> None:
        self.heads: list[tuple[Any, ...]] = []
        self.nodes_gone: list[tuple[int, str]] = []
        self.nodes: list[tuple[int, str, int, int, str]] = []
        self.connections_gone: list[tuple[int, str]] = []
        self.connections: list[tuple[int, str, int, int, str, str, str]] = []
        self.done: list[tuple[int, str, bytes, int, bytes, str]] = []

    def add(self, version: Version, decided: Decided) -> None:
        """Adds a canvas that is to be saved on the version that was found."""
        key, outcome = version.key, decided.outcome
        head = outcome.canvas.head
        assert head is not None
        grown = growth(decided.found.canvas.head, head)
        self.heads.append(
            (
                key,
                version.revision,
                version.lease_version,
                decided.account_id,
                decided.canvas_id,
                grown.canvases,
                grown.json_bytes,
                head.revision,
                canonical(head.fields),
                head.fields["title"],
                head.node_count,
                head.next_order,
                head.size_bytes,
                _signed(head.content_hash),
            )
        )
        for object_id, stored in outcome.written.nodes.items():
            if stored is None:
                self.nodes_gone.append((key, object_id))
            else:
                self.nodes.append((key, object_id, stored.order, _signed(stored.hash), stored.text))
        for object_id, stored in outcome.written.connections.items():
            if stored is None:
                self.connections_gone.append((key, object_id))
            else:
                start, end = ends_of(stored.value)
                hashed = _signed(stored.hash)
                self.connections.append(
                    (key, object_id, stored.order, hashed, start, end, stored.text)
                )
        self.done += [
            (
                key,
                each.mutation_id,
                each.receipt.digest,
                each.receipt.revision,
                each.receipt.result,
                each.operations,
            )
            for each in outcome.done
        ]

    def arguments(self, limits: Limits, now: datetime) -> list[Any]:
        """What the statement takes."""
        return [
            *_columns(self.heads, 14),
            limits.canvases,
            limits.json_bytes,
            now,
            *_columns(self.nodes_gone, 2),
            *_columns(self.nodes, 5),
            *_columns(self.connections_gone, 2),
            *_columns(self.connections, 7),
            *_columns(self.done, 6),
        ]


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _by_account(rows: list[asyncpg.Record]) -> dict[str, list[asyncpg.Record]]:
    found: dict[str, list[asyncpg.Record]] = {}
    for row in rows:
        found.setdefault(row["account_id"], []).append(row)
    return found


def _saved(row: asyncpg.Record) -> Saved:
    if row["is_allowed"]:
        return Saved.YES
    return Saved.EXCEEDED if row["is_free"] else Saved.STALE


def _head(row: asyncpg.Record) -> Head:
    return Head(
        revision=row["place"],
        fields=loads(row["body"]),
        node_count=row["node_count"],
        next_order=row["next_order"],
        size_bytes=row["size_bytes"],
        content_hash=_unsigned(row["hash"]),
    )


def _held(node_id: str, session_id: str, row: asyncpg.Record) -> Held:
    return Held(Lease(node_id, session_id, row["token"], row["expires_at"]), row["now"])


def _stored(row: asyncpg.Record) -> Stored:
    return Stored(
        value=loads(row["body"]), text=row["body"], hash=_unsigned(row["hash"]), order=row["place"]
    )


def _summary(row: asyncpg.Record) -> Summary:
    return Summary(
        incarnation=row["key"],
        canvas_id=row["canvas_id"],
        title=row["title"],
        revision=row["revision"],
        node_count=row["node_count"],
        content_hash=_unsigned(row["content_hash"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _signed(number: int) -> int:
    """64 bits as PostgreSQL's bigint holds them."""
    return number - 2**64 if number >= 2**63 else number


def _unsigned(number: int) -> int:
    return number % 2**64
