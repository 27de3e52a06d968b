"""Remembers canvases: one row an object, two statements an edit."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from json import loads

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

# One statement, one snapshot: the objects are those of the head's revision.
GATHER = """
WITH head AS MATERIALIZED (
    SELECT *
      FROM canvas.canvas
     WHERE account_id = $1
       AND canvas_id = $2
)
SELECT 'now' AS what, '' AS id, 0::bigint AS place, 0::bigint AS hash, NULL AS body,
       NULL::bytea AS digest, NULL::bytea AS result, NULL AS token, clock_timestamp() AS at,
       NULL::bigint AS key, NULL::integer AS node_count, NULL::bigint AS next_order,
       NULL::bigint AS size_bytes, NULL::bigint AS lease_version
UNION ALL
SELECT 'head', '', revision, content_hash, fields, NULL, NULL, NULL, NULL,
       key, node_count, next_order, size_bytes, lease_version
  FROM head
UNION ALL
SELECT 'receipt', mutation_id, revision, 0, NULL, digest, result, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
  FROM canvas.receipt
 WHERE account_id = $1
   AND canvas_id = $2
   AND mutation_id = ANY($3::text[])
UNION ALL
SELECT 'node', id, place, hash, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM canvas.node
 WHERE canvas_key = (SELECT key FROM head)
   AND id = ANY($4::text[])
UNION ALL
SELECT 'end', id, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM canvas.node
 WHERE canvas_key = (SELECT key FROM head)
   AND id = ANY($5::text[])
UNION ALL
SELECT 'connection', id, place, hash, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM canvas.connection
 WHERE canvas_key = (SELECT key FROM head)
   AND id = ANY($6::text[])
UNION ALL
SELECT 'connection', id, place, hash, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM canvas.connection
 WHERE canvas_key = (SELECT key FROM head)
   AND from_node = ANY($7::text[])
UNION ALL
SELECT 'connection', id, place, hash, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM canvas.connection
 WHERE canvas_key = (SELECT key FROM head)
   AND to_node = ANY($7::text[])
UNION ALL
SELECT 'lease', node_id, 0, 0, session_id, NULL, NULL, token, expires_at,
       NULL, NULL, NULL, NULL, NULL
  FROM canvas.lease
 WHERE canvas_key = (SELECT key FROM head)
   AND node_id = ANY($8::text[])
"""

READ_MEDIA = """
SELECT 'resource' AS what, resource_id AS id, NULL AS resource_id
  FROM canvas.resource
 WHERE resource_id = ANY($2::text[])
   AND account_id = $1
UNION ALL
SELECT 'asset', asset_id, resource_id
  FROM canvas.asset
 WHERE account_id = $1
   AND asset_id = ANY($3::text[])
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

# All or nothing in one statement, only on the canvas that was read: at its revision, with no lease
# given since, and only if the account's limits allow what grows.
SAVE = """
WITH current AS MATERIALIZED (
    SELECT key
      FROM canvas.canvas
     WHERE key = $1
       AND revision = $2
       AND lease_version = $3
       FOR UPDATE
), allowed AS (
    UPDATE canvas.usage
       SET canvases   = canvases + $4,
           json_bytes = json_bytes + $5
     WHERE account_id = $6
       AND EXISTS (SELECT FROM current)
       AND ($4 <= 0 OR canvases + $4 <= $7)
       AND ($5 <= 0 OR json_bytes + $5 <= $8)
    RETURNING account_id
), head AS (
    UPDATE canvas.canvas
       SET revision     = $9,
           fields       = $10,
           title        = $11,
           node_count   = $12,
           next_order   = $13,
           size_bytes   = $14,
           content_hash = $15,
           updated_at   = $16
     WHERE key = (SELECT key FROM current)
       AND EXISTS (SELECT FROM allowed)
    RETURNING key
), nodes_gone AS (
    DELETE FROM canvas.node
     WHERE canvas_key = (SELECT key FROM head)
       AND id = ANY($17::text[])
), leases_gone AS (
    DELETE FROM canvas.lease
     WHERE canvas_key = (SELECT key FROM head)
       AND node_id = ANY($17::text[])
), nodes_written AS (
    INSERT INTO canvas.node (canvas_key, id, place, hash, body)
    SELECT key, id, place, written.hash, body
      FROM head, unnest($18::text[], $19::bigint[], $20::bigint[], $21::text[])
                 AS written (id, place, hash, body)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET hash = excluded.hash, body = excluded.body, place = excluded.place
), connections_gone AS (
    DELETE FROM canvas.connection
     WHERE canvas_key = (SELECT key FROM head)
       AND id = ANY($22::text[])
), connections_written AS (
    INSERT INTO canvas.connection (canvas_key, id, place, hash, from_node, to_node, body)
    SELECT key, id, place, written.hash, from_node, to_node, body
      FROM head, unnest($23::text[], $24::bigint[], $25::bigint[], $26::text[], $27::text[],
                        $28::text[])
                 AS written (id, place, hash, from_node, to_node, body)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET hash      = excluded.hash,
                      body      = excluded.body,
                      place     = excluded.place,
                      from_node = excluded.from_node,
                      to_node   = excluded.to_node
), receipts AS (
    INSERT INTO canvas.receipt
           (account_id, canvas_id, mutation_id, digest, revision, result, created_at)
    SELECT $6, $29, mutation_id, digest, revision, result, $16
      FROM head, unnest($30::text[], $31::bytea[], $32::bigint[], $33::bytea[])
                 AS done (mutation_id, digest, revision, result)
), changes AS (
    INSERT INTO canvas.change (canvas_key, revision, mutation_id, operations, at)
    SELECT key, done.revision, mutation_id, operations, $16
      FROM head, unnest($32::bigint[], $30::text[], $34::text[])
                 AS done (revision, mutation_id, operations)
)
SELECT EXISTS (SELECT FROM current) AS is_current,
       EXISTS (SELECT FROM allowed) AS is_allowed
"""

DELETE_CANVAS = """
WITH gone AS (
    DELETE FROM canvas.canvas
     WHERE account_id = $1
       AND canvas_id = $2
    RETURNING size_bytes
)
UPDATE canvas.usage
   SET canvases   = canvases - 1,
       json_bytes = json_bytes - (SELECT size_bytes FROM gone)
 WHERE account_id = $1
   AND EXISTS (SELECT FROM gone)
RETURNING account_id
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
SELECT head.revision,
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


class Session:
    """One canvas, or the place where none is, over one connection to the database."""

    def __init__(
        self, connection: Connection, account_id: str, canvas_id: str, *, is_locked: bool
    ) -> None:
        self._connection = connection
        self._account_id = account_id
        self._canvas_id = canvas_id
        self._is_locked = is_locked

    async def gather(self, mutation_ids: list[str], touched: Touched) -> Found:
        """What the mutations touch, all of one revision, and the receipts of those committed."""
        rows = await self._connection.fetch(
            GATHER,
            self._account_id,
            self._canvas_id,
            mutation_ids,
            list(touched.nodes),
            list(touched.ends),
            list(touched.connections),
            list(touched.removed_nodes),
            list(touched.written_nodes),
        )
        return _found(self._canvas_id, rows)

    async def media(self, resources: Iterable[str], assets: Iterable[str]) -> Known:
        """Which of some resources and assets the account has."""
        rows = await self._connection.fetch(
            READ_MEDIA, self._account_id, list(resources), list(assets)
        )
        return Known(
            resources=frozenset(row["id"] for row in rows if row["what"] == "resource"),
            assets={row["id"]: row["resource_id"] for row in rows if row["what"] == "asset"},
        )

    async def save(self, found: Found, outcome: Outcome, limits: Limits) -> bool:
        """Writes what requests came to, all or nothing, if the canvas is still as it was found.

        Whether it was: else nothing is written. A canvas is only made by one who has the place
        locked. Raises `StorageExceeded`.
        """
        head = outcome.canvas.head
        assert head is not None
        version = found.version
        if version is None:
            if not self._is_locked:
                return False
            key = await self._connection.fetchval(
                INSERT_CANVAS, self._account_id, self._canvas_id, found.now
            )
            if key is None:
                return False
            version = Version(key, revision=1, lease_version=0)
        grown = growth(found.canvas.head, head)
        nodes = {key: it for key, it in outcome.written.nodes.items() if it is not None}
        links = {key: it for key, it in outcome.written.connections.items() if it is not None}
        done = outcome.done
        row = await self._connection.fetchrow(
            SAVE,
            version.key,
            version.revision,
            version.lease_version,
            grown.canvases,
            grown.json_bytes,
            self._account_id,
            limits.canvases,
            limits.json_bytes,
            head.revision,
            canonical(head.fields),
            head.fields["title"],
            head.node_count,
            head.next_order,
            head.size_bytes,
            _signed(head.content_hash),
            found.now,
            list(outcome.written.nodes.keys() - nodes.keys()),
            list(nodes),
            [stored.order for stored in nodes.values()],
            [_signed(stored.hash) for stored in nodes.values()],
            [stored.text for stored in nodes.values()],
            list(outcome.written.connections.keys() - links.keys()),
            list(links),
            [stored.order for stored in links.values()],
            [_signed(stored.hash) for stored in links.values()],
            [ends_of(stored.value)[0] for stored in links.values()],
            [ends_of(stored.value)[1] for stored in links.values()],
            [stored.text for stored in links.values()],
            self._canvas_id,
            [each.mutation_id for each in done],
            [each.receipt.digest for each in done],
            [each.receipt.revision for each in done],
            [each.receipt.result for each in done],
            [each.operations for each in done],
        )
        assert row is not None
        if row["is_current"] and not row["is_allowed"]:
            raise limits.exceeded_by(grown)
        return bool(row["is_current"])

    async def hold(self, node_id: str, session_id: str, token: str) -> Held | None:
        """Leases a node's text to a session; None if there is no such node, or another has it.

        `token` is what a new lease gets; one that the session has already keeps its own.
        """
        row = await self._connection.fetchrow(
            HOLD_LEASE, self._account_id, self._canvas_id, node_id, session_id, token, LEASE
        )
        return _held(node_id, session_id, row) if row else None

    async def renew(self, node_id: str, session_id: str, token: str) -> Held | None:
        """Extends a lease that holds, None if it is over or another's."""
        row = await self._connection.fetchrow(
            RENEW_LEASE, self._account_id, self._canvas_id, node_id, session_id, token, LEASE
        )
        return _held(node_id, session_id, row) if row else None

    async def lease(self, node_id: str) -> Held | None:
        """The lease of a node's text, whether it still holds or not."""
        row = await self._connection.fetchrow(
            READ_LEASE, self._account_id, self._canvas_id, node_id
        )
        return _held(node_id, row["session_id"], row) if row else None


class Line:
    """A connection that is kept from one canvas to the next, and given back if something fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held = AsyncExitStack()
        self._connection: Connection | None = None

    @asynccontextmanager
    async def opened(self, account_id: str, canvas_id: str) -> AsyncIterator[Session]:
        """The canvas as it is; others may change it meanwhile."""
        async with self._connected() as connection:
            yield Session(connection, account_id, canvas_id, is_locked=False)

    @asynccontextmanager
    async def locked(self, account_id: str, canvas_id: str) -> AsyncIterator[Session]:
        """The canvas, or its place, that nobody else changes, in a transaction of the block."""
        async with self._connected() as connection, connection.transaction():
            if await connection.fetchval(LOCK_CANVAS, account_id, canvas_id) is None:
                await connection.execute(LOCK_ABSENT_CANVAS, account_id, canvas_id)
                await connection.fetchval(LOCK_CANVAS, account_id, canvas_id)
            yield Session(connection, account_id, canvas_id, is_locked=True)

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

    async def delete(self, account_id: str, canvas_id: str) -> bool:
        """Deletes a canvas; whether there was one."""
        return await self._database.fetchrow(DELETE_CANVAS, account_id, canvas_id) is not None

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


def _found(canvas_id: str, rows: list[asyncpg.Record]) -> Found:
    receipts: dict[str, Receipt] = {}
    nodes: dict[str, Stored | None] = {}
    connections: dict[str, Stored | None] = {}
    ends: set[str] = set()
    leases: dict[str, Lease] = {}
    head: Head | None = None
    version: Version | None = None
    # The first row of the statement.
    now: datetime = rows[0]["at"]
    for row in rows[1:]:
        object_id = row["id"]
        match row["what"]:
            case "head":
                head = _head(row)
                version = Version(row["key"], row["place"], row["lease_version"])
            case "receipt":
                receipts[object_id] = Receipt(row["digest"], row["place"], row["result"])
            case "node":
                nodes[object_id] = _stored(row)
            case "connection":
                connections[object_id] = _stored(row)
            case "end":
                ends.add(object_id)
            case "lease":
                leases[object_id] = Lease(object_id, row["body"], row["token"], row["at"])
    canvas = Canvas(canvas_id, head, nodes, connections, frozenset(ends))
    return Found(receipts, canvas, leases, version, now)


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
