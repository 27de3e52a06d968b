"""A stream of changes, as a gateway holds it to a service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gesso.generation.v1 import generation_pb2
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from gesso.tasks.v1 import tasks_pb2
from gesso.tasks.v1.tasks_pb2_grpc import TasksServiceStub

from servicekit.client import Client
from servicekit.identity import Behalf


class Watcher:
    """One stream, and what it has told.

    `states` are the newest of each item by account and id, `told` all of them in order with their
    reader; `cursors` the last one of each reader, 0 for the stream's.
    """

    def __init__(self, request: Any, reader: Any, items: str, name: str) -> None:
        self.states: dict[tuple[str, str], Any] = {}
        self.told: list[tuple[int, Any]] = []
        self.cursors: dict[int, str] = {}
        self.failure: Exception | None = None
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self._request, self._reader = request, reader
        self._items, self._name = items, name
        self._news = asyncio.Event()

    def add(self, account_id: str | None, reader: int = 1, since: str = "") -> None:
        """Watches an account."""
        self.cursors.pop(reader, None)
        added = self._reader(account_id=account_id, reader=reader, since=since)
        self.requests.put_nowait(self._request(add=[added]))

    def remove(self, account_id: str | None) -> None:
        """Watches an account no more."""
        self.requests.put_nowait(self._request(remove_account_ids=[account_id]))

    async def caught_up(self, reader: int = 1) -> str:
        """The cursor of a reader, once it has been told all there is."""
        await self.until(lambda: reader in self.cursors)
        return self.cursors[reader]

    async def moved(self) -> str:
        """The next cursor of the stream."""
        self.cursors.pop(0, None)
        await self.until(lambda: 0 in self.cursors)
        return self.cursors[0]

    async def shown(self, item_id: str, **fields: Any) -> Any:
        """An item, once it is shown with such fields."""
        found: list[Any] = []

        def is_shown() -> bool:
            found[:] = [
                item
                for (_, known), item in self.states.items()
                if known == item_id and all(getattr(item, n) == v for n, v in fields.items())
            ]
            return bool(found)

        await self.until(is_shown)
        return found[0]

    async def until(self, done: Callable[[], bool]) -> None:
        """Waits until something holds. Raises what the stream ended with."""
        async with asyncio.timeout(10):
            while not done():
                if self.failure is not None:
                    raise self.failure
                self._news.clear()
                await self._news.wait()

    async def asked(self) -> AsyncIterator[Any]:
        """The requests."""
        while True:
            yield await self.requests.get()

    async def listen(self, responses: AsyncIterator[Any]) -> None:
        """Takes what is told."""
        try:
            async for response in responses:
                for changes in response.changes:
                    for item in getattr(changes, self._items):
                        self.told.append((changes.reader, item))
                        self.states[changes.account_id, getattr(item, self._name)] = item
                    if changes.HasField("cursor"):
                        self.cursors[changes.reader] = changes.cursor
                self._news.set()
        except Exception as failure:
            self.failure = failure
        self._news.set()


@asynccontextmanager
async def watching_jobs(client: Client) -> AsyncIterator[Watcher]:
    """A stream of jobs."""
    watcher = Watcher(generation_pb2.WatchJobsRequest, generation_pb2.JobReader, "jobs", "job_id")
    async with _listening(client, GenerationServiceStub(client.channel).WatchJobs, watcher):
        yield watcher


@asynccontextmanager
async def watching_tasks(client: Client) -> AsyncIterator[Watcher]:
    """A stream of tasks."""
    watcher = Watcher(tasks_pb2.WatchTasksRequest, tasks_pb2.TaskReader, "tasks", "task_id")
    async with _listening(client, TasksServiceStub(client.channel).WatchTasks, watcher):
        yield watcher


@asynccontextmanager
async def _listening(client: Client, method: Any, watcher: Watcher) -> AsyncIterator[None]:
    async with client.exchange(method, watcher.asked(), Behalf()) as responses:
        hearing = asyncio.create_task(watcher.listen(responses))
        try:
            yield
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
