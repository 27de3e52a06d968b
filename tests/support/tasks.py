"""Runs the tasks service and its workers in the test's own process, and asks them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from gesso.tasks.v1 import tasks_pb2 as pb
from gesso.tasks.v1.tasks_pb2_grpc import TasksServiceStub

from servicekit import postgres
from servicekit.client import Client
from servicekit.identity import Behalf
from servicekit.notifications import listening
from servicekit.postgres import DatabaseSettings
from services.tasks import server
from services.tasks.models import DEFAULT, TextModels
from services.tasks.settings import Settings, WorkerSettings
from services.tasks.store import READY_CHANNEL
from services.tasks.work_store import WorkStore
from services.tasks.worker import Worker, working
from tests.support.services import TOKEN, connected, new_account

# Longer than a test: what happens was notified, not found by looking.
NEVER = 600.0


def tasks_settings(database_url: str, **changes: object) -> Settings:
    """Settings for a tasks service that looks for nothing by itself."""
    settings = Settings(
        internal_tokens=TOKEN,
        listen="127.0.0.1:0",
        drain_seconds=1,
        database=DatabaseSettings(database_url=database_url),
        poll_seconds=NEVER,
    )
    return msgspec.structs.replace(settings, **changes)


def worker_settings(database_url: str, **changes: object) -> WorkerSettings:
    """Settings for a worker that looks for nothing by itself."""
    settings = WorkerSettings(
        internal_tokens=TOKEN,
        drain_seconds=5,
        database=DatabaseSettings(database_url=database_url),
        poll_seconds=NEVER,
        flush_seconds=0.005,
    )
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def tasks_service(settings: Settings) -> AsyncIterator[Client]:
    """A tasks service, and a client of it."""
    async with server.serving(settings) as port, connected(port) as made:
        yield made


@asynccontextmanager
async def worker(settings: WorkerSettings, models: TextModels) -> AsyncIterator[Worker]:
    """A worker with models of one's own."""
    url = settings.database.database_url
    async with (
        work_store(url) as store,
        working(store, models, settings) as made,
        listening(url, READY_CHANNEL, heard=lambda _: made.wake(), missed=made.wake),
    ):
        yield made


@asynccontextmanager
async def work_store(database_url: str) -> AsyncIterator[WorkStore]:
    """What workers write through, for a test that is a worker itself."""
    settings = DatabaseSettings(database_url=database_url)
    async with postgres.connected(settings, application="tests") as database:
        yield WorkStore(database)


class Pen:
    """A text model whose every piece the test writes."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.open = 0
        self._pieces: asyncio.Queue[str | Exception | None] = asyncio.Queue()

    def put(self, *pieces: str) -> None:
        """Writes pieces for whoever asked."""
        for piece in pieces:
            self._pieces.put_nowait(piece)

    def end(self, failure: Exception | None = None) -> None:
        """Ends the text, or fails."""
        self._pieces.put_nowait(failure)

    async def write(self, prompt: str, *, model: str) -> AsyncGenerator[str, None]:  # noqa: ARG002 - it has one voice
        """What the test puts, until it ends it."""
        self.asked.put_nowait(prompt)
        self.open += 1
        try:
            while (piece := await self._pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.open -= 1

    def models(self) -> TextModels:
        """Itself as the only model."""
        return {DEFAULT: self}


class Desk:
    """One account's view of its tasks."""

    def __init__(self, client: Client, behalf: Behalf | None = None) -> None:
        self.client = client
        self.behalf = behalf or new_account()
        self.stub = TasksServiceStub(client.channel)
        self._orders = 0

    async def order(self, prompt: str = "a lantern", **fields: Any) -> pb.CreateTaskResponse:
        """Creates a task, by default with a request id of its own."""
        self._orders += 1
        standard = {"request_id": f"r{self._orders}", "type": "text", "prompt": prompt}
        request = pb.CreateTaskRequest(**{**standard, **fields})
        return await self.client.call(self.stub.CreateTask, request, self.behalf)

    async def create(self, prompt: str = "a lantern", **fields: Any) -> str:
        """Creates a task, and answers its id."""
        return (await self.order(prompt, **fields)).task.task_id

    async def detail(self, task_id: str) -> pb.GetTaskResponse:
        """A task with its log."""
        request = pb.GetTaskRequest(task_id=task_id)
        return await self.client.call(self.stub.GetTask, request, self.behalf)

    async def read(self, task_id: str) -> pb.Task:
        """A task."""
        return (await self.detail(task_id)).task

    async def page(self, **fields: Any) -> pb.ListTasksResponse:
        """A page of tasks."""
        request = pb.ListTasksRequest(**fields)
        return await self.client.call(self.stub.ListTasks, request, self.behalf)

    @asynccontextmanager
    async def watching(
        self, task_id: str, after: int = 0
    ) -> AsyncIterator[AsyncIterator[pb.WatchTextEventsResponse]]:
        """The events of a task after a sequence number."""
        request = pb.WatchTextEventsRequest(task_id=task_id, after_sequence=after)
        async with self.client.stream(self.stub.WatchTextEvents, request, self.behalf) as responses:
            yield responses

    async def watched(self, task_id: str, after: int = 0) -> list[pb.WatchTextEventsResponse]:
        """All events of a task to its end, but for those that say nothing."""
        async with self.watching(task_id, after) as responses:
            return [event async for event in responses if event.WhichOneof("event") != "alive"]


def sequence_of(event: pb.WatchTextEventsResponse) -> int | None:
    """The number of a delta or reset."""
    match event.WhichOneof("event"):
        case "delta":
            return event.delta.sequence
        case "reset":
            return event.reset.sequence
    return None


def text_of(events: Iterable[pb.WatchTextEventsResponse]) -> str:
    """The text that events leave: what follows the last reset."""
    parts: list[str] = []
    for event in events:
        match event.WhichOneof("event"):
            case "delta":
                parts.append(event.delta.content)
            case "reset":
                parts.clear()
    return "".join(parts)
