"""What waits for one reader of events: of each job and task the newest state, and little text."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from gesso.generation.v1 import generation_pb2
from gesso.tasks.v1 import tasks_pb2

from gateway import sse
from gateway.endpoints import Output
from gateway.failures import InvalidCursor
from gateway.routes.generations import view_of_job
from gateway.routes.tasks import terminal_of, view_of_task
from gateway.watching import News, Reader, Watching

MAX_TEXTS = 8
# Text events that wait for a slow reader; the services keep the others.
MAX_TEXT_EVENTS = 16
# States that wait for a slow reader; beyond that they are read anew once it reads on.
MAX_STATES = 5_000

_CURSOR = r"(?:[1-9][0-9]{0,17})?"
_PLACE = re.compile(rf"({_CURSOR})\.({_CURSOR})((?:~[A-Za-z0-9_-]{{1,64}}@(?:[0-9]{{1,18}}|end))*)")


class Delta(Output, frozen=True):
    """More text of a task."""

    task_id: str
    sequence: int
    content: str


class Reset(Output, frozen=True):
    """A new attempt at a task: the text before it is void."""

    task_id: str
    sequence: int
    attempt: int


class TextError(Output, frozen=True):
    """A text that does not go on here."""

    task_id: str
    reason: str


@dataclass
class Place:
    """How far a reader has got: cursors of jobs and tasks, and its texts; None for a whole one."""

    jobs: str = ""
    tasks: str = ""
    texts: dict[str, int | None] = field(default_factory=dict)

    def __str__(self) -> str:
        texts = (
            f"~{task_id}@{'end' if sequence is None else sequence}"
            for task_id, sequence in self.texts.items()
        )
        return f"{self.jobs}.{self.tasks}{''.join(texts)}"


def place_from_header(text: str) -> Place:
    """The place that `Last-Event-ID` names. Raises `InvalidCursor`."""
    if not text:
        return Place()
    found = _PLACE.fullmatch(text)
    if found is None or found[3].count("~") > MAX_TEXTS:
        raise InvalidCursor("Last-Event-ID is not an id of this stream; leave it out.")
    parts = (part.rpartition("@") for part in found[3].split("~")[1:])
    texts = {task_id: None if place == "end" else int(place) for task_id, _, place in parts}
    return Place(found[1], found[2], texts)


def _job_data(job: generation_pb2.JobSummary, language: str) -> bytes:
    return msgspec.json.encode(view_of_job(job, language))


def _task_data(task: tasks_pb2.Task, _language: str) -> bytes:
    return msgspec.json.encode(view_of_task(task))


@dataclass(frozen=True)
class Kind:
    """What is followed: its cursor's name in a place, its id, and how it is written."""

    cursor: str
    item_id: str
    encode: Callable[[Any, str], bytes]


JOB = Kind("jobs", "job_id", _job_data)
TASK = Kind("tasks", "task_id", _task_data)


class Outbox:
    """What waits for one reader: of each job and task the newest state, and little text."""

    def __init__(self, place: Place) -> None:
        self.is_over = False
        self._place = place
        self._followed: list[_Followed] = []
        self._texts: asyncio.Queue[tuple[str, tasks_pb2.WatchTextEventsResponse | TextError]] = (
            asyncio.Queue(MAX_TEXT_EVENTS)
        )
        self._news = asyncio.Event()

    @contextmanager
    def followed(
        self, watching: Watching[Any], account_id: str, name: str, kind: Kind, language: str
    ) -> Iterator[None]:
        """Has the states of an account among what waits, inside the block."""
        followed = _Followed(self._place, name, kind, language, self._news.set)
        with closing(
            watching.reader(account_id, tell=followed.tell, reach=followed.reach)
        ) as reader:
            followed.begin(reader)
            self._followed.append(followed)
            yield

    async def put_text(
        self, task_id: str, event: tasks_pb2.WatchTextEventsResponse | TextError
    ) -> None:
        """Adds an event of a text, once there is room for it."""
        await self._texts.put((task_id, event))
        self._news.set()

    def end(self) -> None:
        """Nothing more is sent."""
        self.is_over = True
        self._news.set()

    async def taken(self, *, within_seconds: float) -> bytes:
        """All that waits, as events; empty if nothing comes in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                while not self.is_over:
                    await self._news.wait()
                    self._news.clear()
                    chunk = b"".join(self._events())
                    if chunk:
                        return chunk
        return b""

    def _events(self) -> Iterator[bytes]:
        for followed in self._followed:
            yield from followed.events()
        while not self._texts.empty():
            yield self._text_event(*self._texts.get_nowait())

    def _text_event(
        self, task_id: str, event: tasks_pb2.WatchTextEventsResponse | TextError
    ) -> bytes:
        if isinstance(event, TextError):
            return sse.event("text-error", msgspec.json.encode(event))
        match event.WhichOneof("event"):
            case "delta":
                delta = Delta(task_id, event.delta.sequence, event.delta.content)
                self._place.texts[task_id] = delta.sequence
                return sse.event("text", msgspec.json.encode(delta), str(self._place))
            case "reset":
                reset = Reset(task_id, event.reset.sequence, event.reset.attempt)
                self._place.texts[task_id] = reset.sequence
                return sse.event("text-reset", msgspec.json.encode(reset), str(self._place))
            case "terminal":
                end = {"taskId": task_id} | msgspec.to_builtins(terminal_of(event.terminal))
                self._place.texts[task_id] = None
                return sse.event("text-terminal", msgspec.json.encode(end), str(self._place))
            case _:
                return b""


class _Followed:
    """The jobs, or the tasks, of one reader.

    What is told has the place before it, and a place follows once everything up to it is told: a
    reader that comes back is told the rest. Who has no place yet gets it first.
    """

    def __init__(
        self, place: Place, name: str, kind: Kind, language: str, wake: Callable[[], None]
    ) -> None:
        self._place = place
        self._name = name
        self._kind = kind
        self._language = language
        self._wake = wake
        self._waiting: dict[str, News[Any]] = {}
        self._reached: str | None = None
        self._is_ahead = False
        self._is_behind = False

    @property
    def cursor(self) -> str:
        """Up to where the reader has everything."""
        found: str = getattr(self._place, self._kind.cursor)
        return found

    def begin(self, reader: Reader[Any]) -> None:
        """Is told what is, and what ended since the reader's cursor."""
        self._reader = reader
        reader.begin(self.cursor)

    def tell(self, news: News[Any]) -> None:
        """A state is new."""
        if self._is_behind:
            return
        self._waiting[getattr(news.item, self._kind.item_id)] = news
        if len(self._waiting) > MAX_STATES and self.cursor:
            self._waiting.clear()
            self._reached = None
            self._is_behind = True
        self._wake()

    def reach(self, cursor: str) -> None:
        """Everything up to a cursor has been told."""
        if not self._is_behind:
            # The first place is told before what waits: no later one may take its place.
            if self.cursor or self._reached is None:
                self._reached = cursor
            if self._is_ahead or self._waiting or not self.cursor:
                self._wake()

    def events(self) -> Iterator[bytes]:
        """What waits."""
        if not self.cursor:
            if self._reached is None:
                return
            yield self._move()
        waiting, self._waiting = self._waiting, {}
        for news in waiting.values():
            self._is_ahead = True
            data = news.encoded(self._kind.encode, self._language)
            yield sse.event(self._name, data, str(self._place))
        if self._reached is not None and self._is_ahead:
            self._is_ahead = False
            yield self._move()
        if self._is_behind:
            self._is_behind = False
            self._is_ahead = True
            self._reader.begin(self.cursor)

    def _move(self) -> bytes:
        setattr(self._place, self._kind.cursor, self._reached)
        self._reached = None
        return sse.place(str(self._place))
