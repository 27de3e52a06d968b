"""Remembers canvases and receipts: one row an object, three statements an edit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from json import loads

import asyncpg

from servicekit.postgres import Connection, Database
from services.canvas.domain.canonical import canonical
from services.canvas.domain.edits import Object, Touched, ends_of
from services.canvas.domain.limits import Usage
from services.canvas.domain.operations import Change, Head, Objects, Stored

# The row alone: rows read in a statement that waited for the lock could be older than the lock.
LOCK_CANVAS = """
SELECT key,
       revision,
       fields,
       node_count,
       next_order,
       size_bytes,
       content_hash,
       clock_timestamp() AS now
  FROM canvas.canvas
 WHERE account_id = $1
   AND canvas_id = $2
   FOR UPDATE
"""

# Where there is no row to lock, requests for one canvas take turns on this.
LOCK_ABSENT_CANVAS = "SELECT pg_advisory_xact_lock(hashtextextended($1 || '/' || $2, 0))"

GATHER = """
SELECT 'receipt' AS what, mutation_id AS id, revision AS place, 0::bigint AS hash,
       NULL AS body, digest, result
  FROM canvas.receipt
 WHERE account_id = $1
   AND canvas_id = $2
   AND mutation_id = $3
UNION ALL
SELECT 'node', id, place, hash, body, NULL, NULL
  FROM canvas.node
 WHERE canvas_key = $4
   AND id = ANY($5::text[])
UNION ALL
SELECT 'end', id, 0, 0, NULL, NULL, NULL
  FROM canvas.node
 WHERE canvas_key = $4
   AND id = ANY($6::text[])
UNION ALL
SELECT 'connection', id, place, hash, body, NULL, NULL
  FROM canvas.connection
 WHERE canvas_key = $4
   AND id = ANY($7::text[])
UNION ALL
SELECT 'connection', id, place, hash, body, NULL, NULL
  FROM canvas.connection
 WHERE canvas_key = $4
   AND from_node = ANY($8::text[])
UNION ALL
SELECT 'connection', id, place, hash, body, NULL, NULL
  FROM canvas.connection
 WHERE canvas_key = $4
   AND to_node = ANY($8::text[])
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
RETURNING key
"""

SAVE_CHANGE = """
WITH head AS (
    UPDATE canvas.canvas
       SET revision     = $4,
           fields       = $5,
           title        = $6,
           node_count   = $7,
           next_order   = $8,
           size_bytes   = $9,
           content_hash = $10,
           updated_at   = $11
     WHERE key = $1
), nodes_gone AS (
    DELETE FROM canvas.node
     WHERE canvas_key = $1
       AND id = ANY($12::text[])
), nodes_written AS (
    INSERT INTO canvas.node (canvas_key, id, place, hash, body)
    SELECT $1, id, place, hash, body
      FROM unnest($13::text[], $14::bigint[], $15::bigint[], $16::text[])
           AS written (id, place, hash, body)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET hash = excluded.hash, body = excluded.body, place = excluded.place
), connections_gone AS (
    DELETE FROM canvas.connection
     WHERE canvas_key = $1
       AND id = ANY($17::text[])
), connections_written AS (
    INSERT INTO canvas.connection (canvas_key, id, place, hash, from_node, to_node, body)
    SELECT $1, id, place, hash, from_node, to_node, body
      FROM unnest($18::text[], $19::bigint[], $20::bigint[], $21::text[], $22::text[],
                  $23::text[])
           AS written (id, place, hash, from_node, to_node, body)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET hash      = excluded.hash,
                      body      = excluded.body,
                      place     = excluded.place,
                      from_node = excluded.from_node,
                      to_node   = excluded.to_node
), receipt AS (
    INSERT INTO canvas.receipt
           (account_id, canvas_id, mutation_id, digest, revision, result, created_at)
    VALUES ($2, $3, $24, $25, $4, $26, $11)
)
UPDATE canvas.usage
   SET canvases   = canvases + $27,
       json_bytes = json_bytes + $28
 WHERE account_id = $2
RETURNING canvases, assets, json_bytes
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

LIST_CANVASES = f"""
SELECT {_SUMMARY_COLUMNS}
  FROM canvas.canvas
 WHERE account_id = $1
   AND (updated_at, key) < ($2, $3)
 ORDER BY updated_at DESC, key DESC
 LIMIT $4
"""

READ_CANVAS = f"""
SELECT {_SUMMARY_COLUMNS},
       fields
  FROM canvas.canvas
 WHERE account_id = $1
   AND canvas_id = $2
"""

READ_NODES = """
SELECT body
  FROM canvas.node
 WHERE canvas_key = $1
 ORDER BY place
"""

READ_CONNECTIONS = """
SELECT body
  FROM canvas.connection
 WHERE canvas_key = $1
 ORDER BY place
"""

READ_SYNC_STATUS = """
SELECT revision,
       content_hash,
       clock_timestamp() AS now
  FROM canvas.canvas
 WHERE account_id = $1
   AND canvas_id = $2
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


@dataclass(frozen=True)
class Receipt:
    """What was answered to a committed request."""

    digest: bytes
    revision: int
    result: bytes


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
        return f"{self.revision}-{self.incarnation}"


@dataclass(frozen=True)
class Whole:
    """A canvas with its content as JSON texts."""

    summary: Summary
    fields: str
    nodes: list[str]
    connections: list[str]


@dataclass(frozen=True)
class SyncStatus:
    """What a session compares with what it has."""

    revision: int
    content_hash: int
    now: datetime


class Locked:
    """One canvas, or the place where none is, that nobody else writes until the block ends."""

    def __init__(
        self,
        connection: Connection,
        account_id: str,
        canvas_id: str,
        row: asyncpg.Record | None,
        now: datetime,
    ) -> None:
        self._connection = connection
        self._account_id = account_id
        self._canvas_id = canvas_id
        self._key: int | None = row["key"] if row else None
        self.head = _head(row) if row else None
        self.now = now

    async def gather(self, mutation_id: str, touched: Touched) -> tuple[Receipt | None, Objects]:
        """The receipt of the mutation, if it was committed, and the objects that it touches."""
        rows = await self._connection.fetch(
            GATHER,
            self._account_id,
            self._canvas_id,
            mutation_id,
            self._key,
            list(touched.nodes),
            list(touched.ends),
            list(touched.connections),
            list(touched.removed_nodes),
        )
        receipt: Receipt | None = None
        nodes: dict[str, Stored] = {}
        connections: dict[str, Stored] = {}
        ends: set[str] = set()
        for row in rows:
            match row["what"]:
                case "receipt":
                    receipt = Receipt(row["digest"], row["place"], row["result"])
                case "node":
                    nodes[row["id"]] = _stored(row)
                case "connection":
                    connections[row["id"]] = _stored(row)
                case "end":
                    ends.add(row["id"])
        return receipt, Objects(nodes=nodes, connections=connections, ends=frozenset(ends))

    async def save(self, change: Change, grown: Usage, mutation_id: str, receipt: Receipt) -> Usage:
        """Writes a change with its receipt, and answers what the account keeps then."""
        if self._key is None:
            self._key = await self._connection.fetchval(
                INSERT_CANVAS, self._account_id, self._canvas_id, self.now
            )
        head = change.head
        nodes = {key: stored for key, stored in change.nodes.items() if stored is not None}
        links = {key: stored for key, stored in change.connections.items() if stored is not None}
        row = await self._connection.fetchrow(
            SAVE_CHANGE,
            self._key,
            self._account_id,
            self._canvas_id,
            head.revision,
            canonical(head.fields),
            head.fields["title"],
            head.node_count,
            head.next_order,
            head.size_bytes,
            _signed(head.content_hash),
            self.now,
            list(change.nodes.keys() - nodes.keys()),
            list(nodes),
            [stored.order for stored in nodes.values()],
            [_signed(stored.hash) for stored in nodes.values()],
            [stored.text for stored in nodes.values()],
            list(change.connections.keys() - links.keys()),
            list(links),
            [stored.order for stored in links.values()],
            [_signed(stored.hash) for stored in links.values()],
            [ends_of(stored.value)[0] for stored in links.values()],
            [ends_of(stored.value)[1] for stored in links.values()],
            [stored.text for stored in links.values()],
            mutation_id,
            receipt.digest,
            receipt.result,
            grown.canvases,
            grown.json_bytes,
        )
        assert row is not None
        return Usage(**row)


class CanvasStore:
    """The canvases of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def locked(self, account_id: str, canvas_id: str) -> AsyncIterator[Locked]:
        """The canvas for writing, in a transaction that is committed at the end of the block."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(LOCK_CANVAS, account_id, canvas_id)
            if row is None:
                await connection.execute(LOCK_ABSENT_CANVAS, account_id, canvas_id)
                row = await connection.fetchrow(LOCK_CANVAS, account_id, canvas_id)
            now = row["now"] if row else await connection.fetchval("SELECT clock_timestamp()")
            yield Locked(connection, account_id, canvas_id, row, now)

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
        async with self._database.transaction(isolation="repeatable_read") as connection:
            row = await connection.fetchrow(READ_CANVAS, account_id, canvas_id)
            if row is None:
                return None
            summary = _summary(row)
            if summary.etag == known_etag:
                return summary
            nodes = await connection.fetch(READ_NODES, row["key"])
            connections = await connection.fetch(READ_CONNECTIONS, row["key"])
        return Whole(
            summary=summary,
            fields=row["fields"],
            nodes=[node["body"] for node in nodes],
            connections=[link["body"] for link in connections],
        )

    async def sync_status(self, account_id: str, canvas_id: str) -> SyncStatus | None:
        """Where a canvas is."""
        row = await self._database.fetchrow(READ_SYNC_STATUS, account_id, canvas_id)
        if row is None:
            return None
        return SyncStatus(row["revision"], _unsigned(row["content_hash"]), row["now"])

    async def some_nodes(
        self, account_id: str, canvas_id: str, node_ids: list[str]
    ) -> tuple[int, list[str]] | None:
        """The revision of a canvas, and the JSON texts of some of its nodes at it."""
        row = await self._database.fetchrow(READ_SOME_NODES, account_id, canvas_id, node_ids)
        return (row["revision"], row["bodies"]) if row else None


def _head(row: asyncpg.Record) -> Head:
    fields: Object = loads(row["fields"])
    return Head(
        revision=row["revision"],
        fields=fields,
        node_count=row["node_count"],
        next_order=row["next_order"],
        size_bytes=row["size_bytes"],
        content_hash=_unsigned(row["content_hash"]),
    )


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
