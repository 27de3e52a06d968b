"""Tasks: create, list, read, and follow their text as it comes."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import grpc
import msgspec
from gesso.tasks.v1 import tasks_pb2 as pb
from gesso.tasks.v1.tasks_pb2_grpc import TasksServiceStub
from msgspec import Meta
from starlette.responses import Response

from gateway import sse
from gateway.endpoints import Answer, Call, Input, Media, NoQuery, Output, endpoint
from gateway.failures import InvalidCursor
from gateway.texts import Texts
from servicekit.client import Client
from servicekit.errors import Failure, Invalid
from servicekit.identity import Behalf
from servicekit.ids import new_id
from servicekit.times import rfc3339, time_from_timestamp

MAX_PROMPT_BYTES = 64 * 1024

_STATUS_NAMES = {
    pb.TASK_STATUS_QUEUED: "queued",
    pb.TASK_STATUS_RUNNING: "running",
    pb.TASK_STATUS_SUCCEEDED: "succeeded",
    pb.TASK_STATUS_FAILED: "failed",
}


class TaskMetadata(Input, frozen=True):
    """Where on the canvas the task comes from."""

    node_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class TaskRequest(Input, frozen=True):
    """What is wanted. `clientOperationId` is the idempotency key, if given."""

    type: str
    prompt: str
    project_id: Annotated[str, Meta(min_length=1, max_length=80)] | None = None
    model: str = ""
    metadata: TaskMetadata = TaskMetadata()
    client_operation_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ClientContext(Output, frozen=True):
    """Where on the canvas the task came from."""

    node_id: str | None = None


class TaskView(Output, frozen=True):
    """A task as lists show it."""

    id: str
    type: str
    status: str
    stage: str
    progress: int
    prompt: str
    model: str
    client_context: ClientContext
    attempts: int
    created_at: str
    updated_at: str
    project_id: str | None = None
    client_operation_id: str | None = None
    text_draft: str | None = None
    final_text: str | None = None
    error: str | None = None
    started_at: str | None = None
    completed_at: str | None = None


class LogView(Output, frozen=True):
    """A line about the work."""

    level: str
    code: str
    message: str
    at: str


class TaskDetail(TaskView, frozen=True, kw_only=True):
    """A task with its logs, oldest first."""

    logs: list[LogView]


class Tasks(Output, frozen=True):
    """A page of tasks, newest first."""

    tasks: list[TaskView]
    next_page_token: str | None = None


class TasksQuery(Input, frozen=True):
    """Which tasks."""

    project_id: str | None = None
    node_id: str | None = None
    active_only: bool = False
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    page_token: str = ""


class CursorQuery(Input, frozen=True):
    """The last sequence number seen; wins over `Last-Event-ID`."""

    after: str | None = None


class Delta(Output, frozen=True):
    """More text."""

    sequence: int
    content: str


class Reset(Output, frozen=True):
    """A new attempt: the text before it is void."""

    sequence: int
    attempt: int


class Terminal(msgspec.Struct, rename="camel", frozen=True):
    """The end: nothing follows."""

    status: str
    final_text: str | None
    text_draft: str | None
    complete: bool = True


class TaskRoutes:
    """Tasks of who is signed in."""

    def __init__(self, tasks: Client, texts: Texts) -> None:
        self._tasks = tasks
        self._stub = TasksServiceStub(tasks.channel)
        self._texts = texts

    @endpoint(
        "POST",
        "/api/tasks",
        tag="tasks",
        body=TaskRequest,
        max_body_bytes=2 * MAX_PROMPT_BYTES,
        answers={202: TaskView},
        refusals=("backlog_full", "idempotency_key_reused"),
        idempotent_by_key=True,
    )
    async def create(self, call: Call[TaskRequest, NoQuery]) -> Answer:
        """Have a text written. Its events stream from `/api/tasks/{id}/text-events`."""
        asked = call.body
        own_key = asked.client_operation_id
        if own_key and call.idempotency_key and own_key != call.idempotency_key:
            raise Invalid(
                "Differs from Idempotency-Key; send one of them.", path="clientOperationId"
            )
        request = pb.CreateTaskRequest(
            request_id=own_key or call.idempotency_key or new_id("once"),
            type=asked.type,
            prompt=asked.prompt,
            model=asked.model,
            canvas_id=asked.project_id,
            node_id=asked.metadata.node_id,
            client_operation_id=own_key,
        )
        created = await self._tasks.call(self._stub.CreateTask, request, call.behalf)
        headers = {"Idempotent-Replayed": "true"} if created.replayed else {}
        return Answer(view_of_task(created.task), 202, headers)

    @endpoint("GET", "/api/tasks", tag="tasks", query=TasksQuery, answers={200: Tasks})
    async def tasks(self, call: Call[None, TasksQuery]) -> Answer:
        """List tasks, newest first."""
        request = pb.ListTasksRequest(
            page_size=call.query.limit,
            page_token=call.query.page_token,
            canvas_id=call.query.project_id,
            node_id=call.query.node_id,
            active_only=call.query.active_only,
        )
        page = await self._tasks.call(self._stub.ListTasks, request, call.behalf)
        return Answer(
            Tasks(
                tasks=[view_of_task(task) for task in page.tasks],
                next_page_token=page.next_page_token or None,
            )
        )

    @endpoint(
        "GET",
        "/api/tasks/{task_id}",
        tag="tasks",
        answers={200: TaskDetail},
        refusals=("not_found",),
    )
    async def task(self, call: Call[None, NoQuery]) -> Answer:
        """Read a task with its logs."""
        request = pb.GetTaskRequest(task_id=call.path["task_id"])
        found = await self._tasks.call(self._stub.GetTask, request, call.behalf)
        logs = [
            LogView(
                level=entry.level,
                code=entry.code,
                message=entry.message,
                at=rfc3339(time_from_timestamp(entry.log_time)),
            )
            for entry in found.logs
        ]
        view = view_of_task(found.task)
        return Answer(TaskDetail(logs=logs, **msgspec.structs.asdict(view)))

    @endpoint(
        "GET",
        "/api/tasks/{task_id}/text-events",
        tag="tasks",
        query=CursorQuery,
        answers={200: Media("text/event-stream", "delta, reset and terminal events.")},
        refusals=("invalid_cursor", "not_found"),
    )
    async def text_events(self, call: Call[None, CursorQuery]) -> Answer | Response:
        """Follow a task's text: `delta` and `reset` events with rising ids, then `terminal`.

        Resumes after `after`, or `Last-Event-ID`, without gap or repeat.
        """
        cursor = call.query.after
        if cursor is None:
            cursor = call.request.headers.get("last-event-id", "0")
        request = pb.WatchTextEventsRequest(
            task_id=call.path["task_id"], after_sequence=_sequence(cursor)
        )
        events = self._events(request, call.behalf)
        # What is wrong with the request is told before the stream begins.
        first = await anext(events)
        return sse.response(_from(first, events))

    async def _events(
        self, request: pb.WatchTextEventsRequest, behalf: Behalf
    ) -> AsyncIterator[bytes]:
        """The stream, begun with a comment; goes on elsewhere when an instance goes away."""
        begun = False
        try:
            async for answer in self._texts.events(request, behalf):
                if not begun:
                    yield sse.CONNECTED
                begun = True
                yield _event(answer)
                if answer.WhichOneof("event") == "terminal":
                    return
        except (Failure, grpc.aio.AioRpcError):
            if not begun:
                raise
            yield sse.event("error", b'{"reason":"unavailable"}')
            return
        if not begun:
            yield sse.CONNECTED
        yield sse.MOVED


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidCursor
    return int(text)


async def _from(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in rest:
        yield event


def _event(answer: pb.WatchTextEventsResponse) -> bytes:
    match answer.WhichOneof("event"):
        case "delta":
            delta = Delta(sequence=answer.delta.sequence, content=answer.delta.content)
            return sse.event("delta", msgspec.json.encode(delta), delta.sequence)
        case "reset":
            reset = Reset(sequence=answer.reset.sequence, attempt=answer.reset.attempt)
            return sse.event("reset", msgspec.json.encode(reset), reset.sequence)
        case "terminal":
            return sse.event("terminal", msgspec.json.encode(terminal_of(answer.terminal)))
        case _:
            return sse.HEARTBEAT


def terminal_of(end: pb.TextTerminal) -> Terminal:
    """The end of a text."""
    return Terminal(
        status=_STATUS_NAMES[end.status],
        final_text=end.final_text if end.HasField("final_text") else None,
        text_draft=end.text_draft if end.HasField("text_draft") else None,
    )


def view_of_task(task: pb.Task) -> TaskView:
    """A task as lists show it."""
    return TaskView(
        id=task.task_id,
        type=task.type,
        # One that this gateway does not know yet is not over for it.
        status=_STATUS_NAMES.get(task.status, "running"),
        stage=task.stage,
        progress=task.progress,
        prompt=task.prompt,
        model=task.model,
        client_context=ClientContext(node_id=task.node_id if task.HasField("node_id") else None),
        attempts=task.attempts,
        created_at=rfc3339(time_from_timestamp(task.create_time)),
        updated_at=rfc3339(time_from_timestamp(task.update_time)),
        project_id=task.canvas_id if task.HasField("canvas_id") else None,
        client_operation_id=(
            task.client_operation_id if task.HasField("client_operation_id") else None
        ),
        text_draft=task.text_draft if task.HasField("text_draft") else None,
        final_text=task.final_text if task.HasField("final_text") else None,
        error=task.error if task.HasField("error") else None,
        started_at=_time(task, "start_time"),
        completed_at=_time(task, "end_time"),
    )


def _time(task: Any, field: str) -> str | None:
    return rfc3339(time_from_timestamp(getattr(task, field))) if task.HasField(field) else None
