"""Jobs and tasks as a window hears of them: their states, and how far it has got."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import msgspec
from gesso.generation.v1 import generation_pb2
from gesso.tasks.v1 import tasks_pb2

from gateway.presence import Session
from gateway.routes.generations import view_of_job
from gateway.routes.tasks import view_of_task
from gateway.watching import News, Reader, Watching, Watchings

_WELCOME = b'{"type":"welcome"'
# What is said most often, and is nothing of ours.
_PEER = b'{"type":"peer'


class OnCanvas(Protocol):
    """A job or a task."""

    canvas_id: str


def job_frame(job: generation_pb2.JobSummary, language: str) -> bytes:
    """The frame that tells the state of a job: as lists show it."""
    return b'{"type":"job",' + msgspec.json.encode(view_of_job(job, language))[1:]


def task_frame(task: tasks_pb2.Task, _language: str) -> bytes:
    """The frame that tells the state of a task: as lists show it, its type as `taskType`."""
    view = view_of_task(task)
    members = {"type": "task", "taskType": view.type}
    return msgspec.json.encode(members | msgspec.to_builtins(view) | members)


class States:
    """The states of one account's jobs and tasks on one canvas, for one window.

    They go the way of all frames, and so may be dropped. A mark goes among them and shows, once
    it comes out, that what was before it has been sent; after each welcome the states since the
    last mark are told again (PR20).
    """

    def __init__(
        self, canvas_id: str, language: str, *, send_at_once: Callable[[bytes], bool]
    ) -> None:
        self._canvas_id = canvas_id
        self._language = language
        self._send_at_once = send_at_once
        self._told: list[_Told] = []

    @contextmanager
    def told_to(self, session: Session, account_id: str, watchings: Watchings) -> Iterator[None]:
        """Has those of an account told to the window, inside the block."""
        with (
            self._followed(session, account_id, watchings.jobs, job_frame) as jobs,
            self._followed(session, account_id, watchings.tasks, task_frame) as tasks,
        ):
            self._told = [jobs, tasks]
            yield

    def pass_on(self, frame: bytes) -> bool:
        """Sends a frame at once if the window takes it now; whether it did."""
        if frame.startswith(_PEER):
            return self._send_at_once(frame)
        if not isinstance(frame, Mark) and not self._send_at_once(frame):
            return False
        self.sent(frame)
        return True

    def sent(self, frame: bytes) -> None:
        """A frame has been sent; a mark has come out."""
        if isinstance(frame, Mark):
            frame.told.since = frame.decode()
        elif frame.startswith(_WELCOME):
            for told in self._told:
                told.begin()

    @contextmanager
    def _followed(
        self,
        session: Session,
        account_id: str,
        watching: Watching[Any],
        encode: Callable[[Any, str], bytes],
    ) -> Iterator["_Told"]:
        def tell(news: News[OnCanvas]) -> None:
            if news.item.canvas_id == self._canvas_id:
                told.is_ahead = True
                session.hear(news.encoded(encode, self._language), replaces=False)

        def reach(cursor: str) -> None:
            if told.is_ahead:
                told.is_ahead = False
                session.hear(Mark(told, cursor), replaces=False)

        with watching.reader(account_id, tell=tell, reach=reach) as reader:
            told = _Told(reader)
            yield told


class _Told:
    """How far a window has got with jobs, or with tasks."""

    def __init__(self, reader: Reader[Any]) -> None:
        self.since = ""
        self.is_ahead = False
        self._reader = reader

    def begin(self) -> None:
        """Has the window told what is, and what ended since it was last known to have all."""
        self.is_ahead = True
        self._reader.begin(self.since)


class Mark(bytes):
    """A cursor among frames: nothing to send, but a sign that what was before it is sent."""

    told: _Told

    def __new__(cls, told: _Told, cursor: str) -> Self:
        """The mark of a cursor."""
        mark = super().__new__(cls, cursor.encode())
        mark.told = told
        return mark
