"""Jobs and tasks as a window hears of them: their states, and how far it has got."""

from collections.abc import Callable
from typing import Any, Protocol, Self

import msgspec
from gesso.generation.v1 import generation_pb2
from gesso.tasks.v1 import tasks_pb2

from gateway.presence import Session
from gateway.routes.generations import view_of_job
from gateway.routes.tasks import view_of_task
from gateway.watching import News, Reader, Watching, Watchings

Hear = Callable[[bytes], None]


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

    They wait where all that may wait does, and so may be dropped. A mark goes among them and
    shows, once it comes out, that what was before it has been sent; after each welcome the states
    since the last mark are told again (PR21).
    """

    __slots__ = ("_canvas_id", "_language", "_send_at_once", "_told", "send")

    def __init__(
        self,
        canvas_id: str,
        language: str,
        *,
        send: Callable[[bytes], None],
        send_at_once: Callable[[bytes], bool],
    ) -> None:
        self._canvas_id = canvas_id
        self._language = language
        self.send = send
        self._send_at_once = send_at_once
        self._told: tuple[_Told, ...] = ()

    def begin(self, session: Session, account_id: str, watchings: Watchings) -> None:
        """Has those of an account told to the window, from its next welcome on."""
        place = (session.hear, self._canvas_id, self._language)
        self._told = (
            _Told(watchings.jobs, account_id, job_frame, *place),
            _Told(watchings.tasks, account_id, task_frame, *place),
        )

    def end(self) -> None:
        """Nothing is told any more."""
        for told in self._told:
            told.reader.close()
        self._told = ()

    def pass_on(self, frame: bytes) -> bool:
        """Sends a frame at once if the window takes it now; whether it did."""
        if not isinstance(frame, Mark) and not self._send_at_once(frame):
            return False
        self.sent(frame)
        return True

    def begun(self) -> None:
        """A welcome has been sent."""
        for told in self._told:
            told.begin()

    def sent(self, frame: bytes) -> None:
        """A frame has been sent; a mark has come out."""
        if isinstance(frame, Mark):
            frame.told.since = frame.decode()


class _Told:
    """How far a window has got with jobs, or with tasks."""

    __slots__ = ("_canvas_id", "_encode", "_hear", "_is_ahead", "_language", "reader", "since")

    def __init__(
        self,
        watching: Watching[Any],
        account_id: str,
        encode: Callable[[Any, str], bytes],
        hear: Hear,
        canvas_id: str,
        language: str,
    ) -> None:
        self.since = ""
        self.reader: Reader[Any] = watching.reader(account_id, tell=self.tell, reach=self.reach)
        self._is_ahead = False
        self._encode = encode
        self._hear = hear
        self._canvas_id = canvas_id
        self._language = language

    def begin(self) -> None:
        """Has the window told what is, and what ended since it was last known to have all."""
        self._is_ahead = True
        self.reader.begin(self.since)

    def tell(self, news: News[OnCanvas]) -> None:
        """A state is new."""
        if news.item.canvas_id == self._canvas_id:
            self._is_ahead = True
            self._hear(news.encoded(self._encode, self._language))

    def reach(self, cursor: str) -> None:
        """Everything up to a cursor has been told."""
        if self._is_ahead:
            self._is_ahead = False
            self._hear(Mark(self, cursor))


class Mark(bytes):
    """A cursor among frames: nothing to send, but a sign that what was before it is sent."""

    told: _Told

    def __new__(cls, told: _Told, cursor: str) -> Self:
        """The mark of a cursor."""
        mark = super().__new__(cls, cursor.encode())
        mark.told = told
        return mark
