"""Tells streams what changed of the accounts that they watch: read once, the newest state only.

What is notified is read by its id, at once. Every few seconds it is looked for what changed and
nobody told of; that moves the cursor, from which a reader can go on elsewhere and miss nothing.
A cursor is the oldest transaction that was under way when it was read (docs/decisions/0016).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import asyncpg

from servicekit.background import background
from servicekit.errors import Failure, Invalid, Unavailable
from servicekit.notifications import listening
from servicekit.pauses import growing, spread
from servicekit.telemetry import logger

# Between two reads of what was notified.
QUIET_SECONDS = 0.02
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
MAX_CHANGED = 500
MAX_CATCHING_UP = 50
MAX_LOOKED_AT = 500
PAGE = 200
# What is notified beyond that is looked for instead.
MAX_NOTIFIED = 10_000
# A stream for which more than that waits has no more read for it to catch up, and then ends.
ENOUGH_WAITING = 1_000
MAX_WAITING = 10_000
MAX_TOLD = 200

# A snapshot in which nothing is visible: all there is comes after it.
NEVER = "1:1:"
# A transaction that does not come.
LAST = 2**63 - 1
# So many readers come, or accounts go, in one request.
MAX_REQUESTED = 1_000

Item = TypeVar("Item")


class Moving(Unavailable):
    """The stream ends here; another instance goes on from the last cursor."""

    def __init__(self) -> None:
        super().__init__("The server is moving; watch again from the last cursor.")


class TooFarBehind(Unavailable):
    """The reader of a stream is so slow that the stream has to begin anew."""

    def __init__(self) -> None:
        super().__init__("Too much waits to be read; watch again from the last cursor.")


@dataclass(frozen=True)
class Change(Generic[Item]):
    """The newest state of something, and whose it is."""

    account_id: str
    item_id: str
    item: Item


@dataclass(frozen=True)
class Asked:
    """What to read of an account: what is not over, and what ended, since given snapshots.

    None reads nothing of the kind. What ended is read in the order of `ended_after`: transaction
    and key.
    """

    account_id: str
    live_since: str | None
    ended_since: str | None
    ended_after: tuple[int, int]


@dataclass(frozen=True)
class Found(Generic[Item]):
    """What was found at a snapshot, in the order of the questions: changes, and what is left."""

    snapshot: str
    changes: list[list[Change[Item]]]
    rest: list[Asked | None]


class Reader(Protocol):
    """Somebody who watches an account, as a message says."""

    @property
    def reader(self) -> int:
        """Its number, from 1."""

    @property
    def account_id(self) -> str:
        """The account."""

    @property
    def since(self) -> str:
        """The last cursor that it had."""


class Request(Protocol):
    """What a stream watches from now on, as a message says."""

    @property
    def add(self) -> Sequence[Reader]:
        """Who comes."""

    @property
    def remove_account_ids(self) -> Sequence[str]:
        """The accounts that nobody watches any more."""


class Source(Protocol[Item]):
    """Where changes are read."""

    async def newest(
        self, item_ids: Sequence[str], account_ids: Sequence[str]
    ) -> list[Change[Item]]:
        """The items of those ids that belong to those accounts."""

    async def since(self, asked: Sequence[Asked], limit: int) -> Found[Item]:
        """What changed; of what ended at most `limit` of each account."""


@dataclass(frozen=True)
class News(Generic[Item]):
    """What a stream tells: items of an account, for one reader or (0) all of them.

    With a cursor, everything up to it has been told: to the reader, or without an account to all
    readers that have had a cursor of their own.
    """

    account_id: str
    reader: int
    items: list[Item]
    cursor: str | None


def oldest_running(snapshot: str) -> int:
    """The oldest transaction that was under way at a snapshot: all before it were over."""
    return int(snapshot.partition(":")[0])


def catch_up(account_id: str, cursor: str) -> Asked:
    """What is not over, and what ended since a cursor; with an empty one nothing that is over.

    Raises `Invalid` for what is no cursor.
    """
    if not cursor:
        return Asked(account_id, NEVER, None, (LAST, 0))
    is_number = cursor.isascii() and cursor.isdecimal() and len(cursor) <= len(str(LAST))
    if not (is_number and 0 < int(cursor) < LAST):
        raise Invalid("The cursor is not one of ours.", path="since")
    return Asked(account_id, NEVER, f"{cursor}:{cursor}:", (int(cursor), 0))


def columns_from_asked(asked: Sequence[Asked]) -> tuple[list[Any], ...]:
    """What is asked, as `since` of a store has it read: accounts, and since and after when."""
    return (
        [each.account_id for each in asked],
        [each.live_since for each in asked],
        [each.ended_since for each in asked],
        [str(each.ended_after[0]) for each in asked],
        [each.ended_after[1] for each in asked],
    )


def found_from_rows(
    asked: Sequence[Asked],
    limit: int,
    rows: Sequence[asyncpg.Record],
    changes: Sequence[Change[Item] | None],
) -> Found[Item]:
    """What rows say: each has the `snapshot`, the `place` of its question, `ended_in` and `key`.

    `changes` has the change of each row; None for the one row that only has the snapshot.
    """
    found: list[list[Change[Item]]] = [[] for _ in asked]
    ended: list[list[tuple[int, int]]] = [[] for _ in asked]
    for row, change in zip(rows, changes, strict=True):
        if change is not None:
            found[row["place"]].append(change)
            if row["ended_in"] is not None:
                ended[row["place"]].append((int(row["ended_in"]), row["key"]))
    return Found(
        snapshot=rows[0]["snapshot"],
        changes=found,
        rest=[
            replace(each, live_since=None, ended_after=max(ends)) if len(ends) >= limit else None
            for each, ends in zip(asked, ended, strict=True)
        ],
    )


@dataclass(frozen=True)
class _CatchingUp:
    """A reader that has still to be told what is, and the first snapshot that it was told."""

    asked: Asked
    snapshot: str | None = None


class Stream(Generic[Item]):
    """What one stream watches, and what waits for it: of each item the newest state only."""

    def __init__(self, watches: "Watches[Item]") -> None:
        self.catching_up: dict[int, _CatchingUp] = {}
        self._watches = watches
        self._accounts: set[str] = set()
        # In the order of reading: what was read later comes later. Without an id: a cursor.
        self._waiting: dict[tuple[str, int, str | None], Any] = {}
        self._news = asyncio.Event()
        self._is_over = False
        self._failure: Failure | None = None

    def add(self, account_id: str, reader: int, since: str) -> None:
        """Watches an account; the reader is told what is not over, and what ended since a cursor.

        Raises `Invalid` for what is no cursor.
        """
        self.catching_up[reader] = _CatchingUp(catch_up(account_id, since))
        self._accounts.add(account_id)
        self._watches.watch(account_id, self)

    def remove(self, account_id: str) -> None:
        """Watches an account no more."""
        self._accounts.discard(account_id)
        self._watches.forget(account_id, self)
        self.catching_up = {
            reader: each
            for reader, each in self.catching_up.items()
            if each.asked.account_id != account_id
        }

    def leave(self) -> None:
        """Watches nothing any more."""
        for account_id in list(self._accounts):
            self.remove(account_id)

    def end(self, failure: Failure | None = None) -> None:
        """Ends the news, with a failure or without."""
        self._failure = self._failure or failure
        self._is_over = True
        self._news.set()

    @property
    def has_room(self) -> bool:
        """Whether there should be read for readers that catch up."""
        return not self._is_over and len(self._waiting) < ENOUGH_WAITING

    def put(self, change: Change[Item], reader: int = 0) -> None:
        """Has an item told. What has not been told of it yet is not told any more."""
        if self._is_over:
            return
        key = (change.account_id, reader, change.item_id)
        before = self._waiting.get(key)
        if before == change.item:
            # Told later it would come after a cursor that covers it.
            return
        self._waiting.pop(key, None)
        self._waiting[key] = change.item
        self._news.set()
        if len(self._waiting) > MAX_WAITING:
            self._waiting.clear()
            self.end(TooFarBehind())

    def put_cursor(self, cursor: str, account_id: str = "", reader: int = 0) -> None:
        """Has it told that everything up to a cursor has been told."""
        # A stream that is over may have thrown away what comes before.
        if self._is_over:
            return
        self._waiting.pop((account_id, reader, None), None)
        self._waiting[account_id, reader, None] = cursor
        self._news.set()

    async def news(self) -> AsyncIterator[list[News[Item]]]:
        """What to tell, as it comes. Raises what the stream is ended with."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                yield self._taken()
                if self.catching_up and self.has_room:
                    self._watches.wake()
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                return

    async def hear(self, requests: AsyncIterator[Request]) -> None:
        """Does what requests say, until they end. Raises `Invalid`."""
        async for request in requests:
            if max(len(request.add), len(request.remove_account_ids)) > MAX_REQUESTED:
                raise Invalid(f"At most {MAX_REQUESTED} come or go in one request.")
            for each in request.add:
                if not (each.reader and each.account_id):
                    raise Invalid("A reader has a number from 1 and an account.", path="add")
                self.add(each.account_id, each.reader, each.since)
            for account_id in request.remove_account_ids:
                self.remove(account_id)

    def _taken(self) -> list[News[Item]]:
        taken: list[News[Item]] = []
        for key in list(islice(self._waiting, MAX_TOLD)):
            account_id, reader, item_id = key
            value = self._waiting.pop(key)
            last = taken[-1] if taken else None
            is_same = last and (last.account_id, last.reader) == (account_id, reader)
            if item_id is None:
                taken.append(News(account_id, reader, [], value))
            elif last and is_same and last.cursor is None:
                last.items.append(value)
            else:
                taken.append(News(account_id, reader, [value], None))
        return taken


class Watches(Generic[Item]):
    """The accounts that streams of this process watch."""

    def __init__(self, source: Source[Item], *, look_seconds: float) -> None:
        self._source = source
        self._look_seconds = look_seconds
        self._streams: dict[Stream[Item], None] = {}
        self._accounts: dict[str, dict[Stream[Item], None]] = {}
        self._changed: dict[str, str] = {}
        self._since: str | None = None
        self._look_at = 0.0
        self._news = asyncio.Event()
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._accounts)

    @contextmanager
    def stream(self) -> Iterator[Stream[Item]]:
        """A stream that watches nothing yet. Raises `Moving`."""
        if self._is_draining:
            raise Moving
        stream = Stream(self)
        self._streams[stream] = None
        try:
            yield stream
        finally:
            del self._streams[stream]
            stream.leave()

    async def told(self, requests: AsyncIterator[Request]) -> AsyncIterator[list[News[Item]]]:
        """What there is to tell a stream that asks for it, until its requests end.

        Raises `Invalid` for a wrong request, `Moving` and `TooFarBehind`.
        """
        with self.stream() as stream:
            # Not a task group: one must not span a yield, and would wrap the failure.
            hearing = asyncio.create_task(stream.hear(requests))
            hearing.add_done_callback(lambda _: stream.end())
            try:
                async for news in stream.news():
                    yield news
                await hearing
            finally:
                hearing.cancel()

    def watch(self, account_id: str, stream: Stream[Item]) -> None:
        """Has a stream told what changes of an account, from now on."""
        self._accounts.setdefault(account_id, {})[stream] = None
        self.wake()

    def forget(self, account_id: str, stream: Stream[Item]) -> None:
        """Has a stream told no more of an account."""
        streams = self._accounts.get(account_id, {})
        streams.pop(stream, None)
        if not streams:
            self._accounts.pop(account_id, None)

    def heard(self, payload: str) -> None:
        """Items have changed: a line for each, its id and its account. Never waits."""
        for line in payload.split("\n"):
            item_id, _, account_id = line.partition(" ")
            if account_id in self._accounts:
                self._changed[item_id] = account_id
                self.wake()
        if len(self._changed) > MAX_NOTIFIED:
            self._changed.clear()
            self.look_again()

    def look_again(self) -> None:
        """Has all that changed looked for, soon. Never waits."""
        self._look_at = 0.0
        self.wake()

    def wake(self) -> None:
        """There is something to read."""
        self._news.set()

    def drain(self) -> None:
        """Ends all streams, since the process goes away."""
        self._is_draining = True
        for stream in self._streams:
            stream.end(Moving())

    async def read_forever(self) -> None:
        """Reads what changed and tells it. What cannot be read now is looked for later."""
        log = logger("watches")
        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                await self._read()
            except Failure as failure:
                log.warning("changes were not read", why=failure.detail)
                self.look_again()
                await asyncio.sleep(next(pauses))
            else:
                pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._look_at):
                await self._news.wait()
        self._news.clear()
        if loop.time() >= self._look_at:
            # Before, so that who asks for another look meanwhile gets it.
            self._look_at = loop.time() + spread(self._look_seconds)
            await self._look()
        readers = self._readers()
        if readers:
            await self._catch_up(readers)
        if self._changed:
            await self._tell_changed()
            # What comes meanwhile is read together.
            await asyncio.sleep(QUIET_SECONDS)
        if self._changed or readers:
            self.wake()

    async def _tell_changed(self) -> None:
        batch = dict(islice(self._changed.items(), MAX_CHANGED))
        for item_id in batch:
            del self._changed[item_id]
        for change in await self._source.newest(list(batch), list(set(batch.values()))):
            self._tell(change)

    async def _look(self) -> None:
        """Looks for what changed since the last look, and moves the cursor of all streams."""
        since = self._since
        accounts = iter(list(self._accounts) if since else ())
        snapshot: str | None = None
        while (chunk := list(islice(accounts, MAX_LOOKED_AT))) or snapshot is None:
            asked = [
                Asked(account_id, since, since, (oldest_running(since or NEVER), 0))
                for account_id in chunk
            ]
            while asked or snapshot is None:
                found = await self._source.since(asked, PAGE)
                snapshot = snapshot or found.snapshot
                for changes in found.changes:
                    for change in changes:
                        self._tell(change)
                asked = [each for each in found.rest if each is not None]
        self._since = snapshot
        for stream in self._streams:
            stream.put_cursor(str(oldest_running(snapshot)))

    def _readers(self) -> list[tuple[Stream[Item], int, _CatchingUp]]:
        """Some of those who have to catch up."""
        waiting = (
            (stream, reader, each)
            for stream in self._streams
            if stream.has_room
            for reader, each in stream.catching_up.items()
        )
        return list(islice(waiting, MAX_CATCHING_UP))

    async def _catch_up(self, readers: list[tuple[Stream[Item], int, _CatchingUp]]) -> None:
        found = await self._source.since([each.asked for _, _, each in readers], PAGE)
        for (stream, reader, each), changes, rest in zip(
            readers, found.changes, found.rest, strict=True
        ):
            # Who finds no room is read for again when there is some.
            if stream.catching_up.get(reader) is not each or not stream.has_room:
                continue
            for change in changes:
                stream.put(change, reader)
            snapshot = each.snapshot or found.snapshot
            if rest is not None:
                stream.catching_up[reader] = _CatchingUp(rest, snapshot)
                continue
            del stream.catching_up[reader]
            stream.put_cursor(str(oldest_running(snapshot)), each.asked.account_id, reader)

    def _tell(self, change: Change[Item]) -> None:
        for stream in list(self._accounts.get(change.account_id, ())):
            stream.put(change)


@asynccontextmanager
async def watching(
    watches: Watches[Any], *, database_url: str, channel: str, draining: asyncio.Event
) -> AsyncIterator[None]:
    """Keeps the watches going inside the block; ends their streams once `draining` is set."""
    async with (
        listening(database_url, channel, heard=watches.heard, missed=watches.look_again),
        background(watches.read_forever(), _drain(watches, draining)),
    ):
        yield


async def _drain(watches: Watches[Any], draining: asyncio.Event) -> None:
    await draining.wait()
    watches.drain()
