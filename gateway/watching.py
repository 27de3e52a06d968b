"""What changes of jobs and tasks: one stream to each service, for all who watch an account here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Generic, TypeVar

import grpc
from gesso.generation.v1 import generation_pb2
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from gesso.tasks.v1 import tasks_pb2
from gesso.tasks.v1.tasks_pb2_grpc import TasksServiceStub

from servicekit.background import background
from servicekit.client import Client, held
from servicekit.identity import Behalf
from servicekit.telemetry import logger

MAX_REQUESTED = 500

Item = TypeVar("Item")


class News(Generic[Item]):
    """The newest state of something, encoded once for all who hear it in one language."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self._encoded: dict[tuple[Callable[..., bytes], str], bytes] = {}

    def encoded(self, encode: Callable[[Item, str], bytes], language: str) -> bytes:
        """As `encode` writes it in a language."""
        found = self._encoded.get((encode, language))
        if found is None:
            found = self._encoded[encode, language] = encode(self.item, language)
        return found


class Reader(Generic[Item]):
    """Somebody who watches an account, from `Watching.reader`.

    `tell` gets each state that is new, or may be; `reach` each cursor up to which everything has
    been told. Both must not block.
    """

    __slots__ = ("_reach", "_watching", "account_id", "is_caught_up", "number", "since", "tell")

    def __init__(
        self,
        watching: "Watching[Item]",
        account_id: str,
        tell: Callable[[News[Item]], None],
        reach: Callable[[str], None],
    ) -> None:
        self.account_id = account_id
        self.number = 0
        self.since = ""
        self.is_caught_up = False
        self.tell = tell
        self._reach = reach
        self._watching = watching

    def begin(self, since: str) -> None:
        """Is told what is not over, and what ended since a cursor, and from then on all news."""
        self.since = since
        self.is_caught_up = False
        self._watching.begin(self)

    def reach(self, cursor: str) -> None:
        """Everything up to a cursor has been told."""
        self.is_caught_up = True
        self.since = cursor
        self._reach(cursor)

    def close(self) -> None:
        """Is told nothing any more."""
        self._watching.forget(self)


@dataclass(frozen=True)
class Speech(Generic[Item]):
    """How a service is asked for its changes, and what it calls them."""

    service: str
    method: Callable[[grpc.aio.Channel], Any]
    request: Callable[..., Any]
    reader: Callable[..., Any]
    items: Callable[[Any], Sequence[Item]]


JOBS: Speech[generation_pb2.JobSummary] = Speech(
    service="generation",
    method=lambda channel: GenerationServiceStub(channel).WatchJobs,
    request=generation_pb2.WatchJobsRequest,
    reader=generation_pb2.JobReader,
    items=lambda changes: changes.jobs,
)
TASKS: Speech[tasks_pb2.Task] = Speech(
    service="tasks",
    method=lambda channel: TasksServiceStub(channel).WatchTasks,
    request=tasks_pb2.WatchTasksRequest,
    reader=tasks_pb2.TaskReader,
    items=lambda changes: changes.tasks,
)


class Watching(Generic[Item]):
    """The readers of this gateway, and the stream by which a service knows of them."""

    def __init__(self, client: Client, speech: Speech[Item]) -> None:
        self._client = client
        self._speech = speech
        self._numbers = count(1)
        self._readers: dict[int, Reader[Item]] = {}
        self._accounts: dict[str, dict[Reader[Item], None]] = {}
        self._wishes = _Wishes()

    def reader(
        self,
        account_id: str,
        *,
        tell: Callable[[News[Item]], None],
        reach: Callable[[str], None],
    ) -> Reader[Item]:
        """A reader that is told nothing before it begins, and has to be closed."""
        reader = Reader(self, account_id, tell, reach)
        self._accounts.setdefault(account_id, {})[reader] = None
        return reader

    def begin(self, reader: Reader[Item]) -> None:
        """Has a reader told from its cursor on, as soon as the service answers."""
        # A number of its own each time: what was told to the one before is not for this one.
        self._readers.pop(reader.number, None)
        reader.number = next(self._numbers)
        self._readers[reader.number] = reader
        self._wishes.come(reader.number)

    def forget(self, reader: Reader[Item]) -> None:
        """Has a reader told nothing any more."""
        self._readers.pop(reader.number, None)
        readers = self._accounts.get(reader.account_id, {})
        readers.pop(reader, None)
        if not readers and self._accounts.pop(reader.account_id, None) is not None:
            self._wishes.go(reader.account_id)

    async def keep(self) -> None:
        """Holds the stream, for ever: after a lost one every reader goes on from its cursor."""
        log = logger("gateway.watching")
        method = self._speech.method(self._client.channel)

        async def one() -> None:
            # Those of the stream before may still be taken by its end.
            self._wishes = wishes = _Wishes()
            for reader in list(self._readers.values()):
                reader.begin(reader.since)
            async with self._client.exchange(method, self._requests(wishes), Behalf()) as responses:
                async for response in responses:
                    self._receive(response)

        await held(
            one,
            lost=lambda why: log.warning(
                "changes are not told", service=self._speech.service, why=why
            ),
        )

    async def _requests(self, wishes: "_Wishes") -> AsyncIterator[Any]:
        while True:
            coming, going = await wishes.taken()
            yield self._speech.request(
                add=[
                    self._speech.reader(
                        reader=number,
                        account_id=self._readers[number].account_id,
                        since=self._readers[number].since,
                    )
                    for number in coming
                    if number in self._readers
                ],
                remove_account_ids=[each for each in going if each not in self._accounts],
            )

    def _receive(self, response: Any) -> None:
        for changes in response.changes:
            readers = self._readers_of(changes)
            for item in self._speech.items(changes):
                news = News(item)
                for reader in readers:
                    reader.tell(news)
            if changes.HasField("cursor"):
                for reader in readers:
                    if changes.reader or reader.is_caught_up:
                        reader.reach(changes.cursor)

    def _readers_of(self, changes: Any) -> list[Reader[Item]]:
        if changes.reader:
            reader = self._readers.get(changes.reader)
            return [reader] if reader else []
        if not changes.account_id:
            return list(self._readers.values())
        # Those that have not begun do not want to know yet.
        return [each for each in self._accounts.get(changes.account_id, ()) if each.number]


@dataclass(frozen=True)
class Watchings:
    """What can be watched."""

    jobs: Watching[generation_pb2.JobSummary]
    tasks: Watching[tasks_pb2.Task]


@asynccontextmanager
async def watching(generation: Client, tasks: Client) -> AsyncIterator[Watchings]:
    """Watches jobs and tasks of whoever has readers here, inside the block."""
    made = Watchings(Watching(generation, JOBS), Watching(tasks, TASKS))
    async with background(made.jobs.keep(), made.tasks.keep()):
        yield made


class _Wishes:
    """What one stream has still to ask for: readers that come, by number, and accounts that go."""

    def __init__(self) -> None:
        self._coming: dict[int, None] = {}
        self._going: dict[str, None] = {}
        self._news = asyncio.Event()

    def come(self, number: int) -> None:
        """A reader begins."""
        self._coming[number] = None
        self._news.set()

    def go(self, account_id: str) -> None:
        """Nobody reads of an account any more."""
        self._going[account_id] = None
        self._news.set()

    async def taken(self) -> tuple[list[int], list[str]]:
        """Some of what there is to ask for, once there is something."""
        while not (self._coming or self._going):
            self._news.clear()
            await self._news.wait()
        return _first(self._coming), _first(self._going)


def _first(waiting: dict[Any, None]) -> list[Any]:
    """Takes the first out of what waits."""
    taken = list(islice(waiting, MAX_REQUESTED))
    for each in taken:
        del waiting[each]
    return taken
