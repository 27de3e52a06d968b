"""Speaks gesso.tasks.v1: messages into values and back."""

from collections.abc import AsyncIterator

from gesso.tasks.v1 import tasks_pb2
from gesso.tasks.v1.tasks_pb2_grpc import TasksServiceServicer

from servicekit.identity import Context, account_of
from servicekit.pages import page_of, page_size, place_from_token
from servicekit.times import timestamp_from_time
from servicekit.watches import News, Watches
from services.tasks.domain.tasks import Choice, LogEntry, Order, Status, Task
from services.tasks.domain.text import Alive, Delta, Reset, Terminal, TextEvent
from services.tasks.service import TasksService

_STATUSES: dict[Status, tasks_pb2.TaskStatus.ValueType] = {
    "queued": tasks_pb2.TASK_STATUS_QUEUED,
    "running": tasks_pb2.TASK_STATUS_RUNNING,
    "succeeded": tasks_pb2.TASK_STATUS_SUCCEEDED,
    "failed": tasks_pb2.TASK_STATUS_FAILED,
}


class TasksRpc(TasksServiceServicer):
    """The tasks service as gRPC."""

    def __init__(self, service: TasksService, watches: Watches[Task]) -> None:
        self._service = service
        self._watches = watches

    async def CreateTask(
        self, request: tasks_pb2.CreateTaskRequest, context: Context
    ) -> tasks_pb2.CreateTaskResponse:
        """See tasks.proto."""
        created = await self._service.create(account_of(context), order_from_proto(request))
        return tasks_pb2.CreateTaskResponse(
            task=proto_from_task(created.task), replayed=created.replayed
        )

    async def GetTask(
        self, request: tasks_pb2.GetTaskRequest, context: Context
    ) -> tasks_pb2.GetTaskResponse:
        """See tasks.proto."""
        task, logs = await self._service.read(account_of(context), request.task_id)
        return tasks_pb2.GetTaskResponse(
            task=proto_from_task(task), logs=map(proto_from_log_entry, logs)
        )

    async def ListTasks(
        self, request: tasks_pb2.ListTasksRequest, context: Context
    ) -> tasks_pb2.ListTasksResponse:
        """See tasks.proto."""
        size = page_size(request.page_size)
        (before,) = place_from_token(request.page_token)
        choice = Choice(
            canvas_id=request.canvas_id if request.HasField("canvas_id") else None,
            node_id=request.node_id if request.HasField("node_id") else None,
            active_only=request.active_only,
        )
        found = await self._service.page(account_of(context), choice, before, size + 1)
        shown, next_page_token = page_of(found, size, lambda task: (task.key,))
        return tasks_pb2.ListTasksResponse(
            tasks=map(proto_from_task, shown), next_page_token=next_page_token
        )

    async def WatchTextEvents(
        self, request: tasks_pb2.WatchTextEventsRequest, context: Context
    ) -> AsyncIterator[tasks_pb2.WatchTextEventsResponse]:
        """See tasks.proto."""
        events = self._service.watch(account_of(context), request.task_id, request.after_sequence)
        async for event in events:
            yield proto_from_event(event)

    async def WatchTasks(
        self, request_iterator: AsyncIterator[tasks_pb2.WatchTasksRequest], context: Context
    ) -> AsyncIterator[tasks_pb2.WatchTasksResponse]:
        """See tasks.proto."""
        await context.send_initial_metadata(())
        async for news in self._watches.told(request_iterator):
            yield tasks_pb2.WatchTasksResponse(changes=map(proto_from_news, news))


def order_from_proto(request: tasks_pb2.CreateTaskRequest) -> Order:
    """What a request asks for. Raises `Invalid`."""
    return Order(
        request_id=request.request_id,
        type=request.type,
        prompt=request.prompt,
        model=request.model,
        canvas_id=request.canvas_id if request.HasField("canvas_id") else None,
        node_id=request.node_id if request.HasField("node_id") else None,
        client_operation_id=request.client_operation_id
        if request.HasField("client_operation_id")
        else None,
    )


def proto_from_task(task: Task) -> tasks_pb2.Task:
    """A task as a message."""
    return tasks_pb2.Task(
        task_id=task.task_id,
        type=task.type,
        status=_STATUSES[task.status],
        stage=task.stage,
        progress=task.progress,
        prompt=task.prompt,
        model=task.model,
        canvas_id=task.canvas_id,
        node_id=task.node_id,
        client_operation_id=task.client_operation_id,
        text_draft=task.text_draft,
        final_text=task.final_text,
        error=task.error,
        attempts=task.attempts,
        create_time=timestamp_from_time(task.created_at),
        start_time=timestamp_from_time(task.started_at),
        end_time=timestamp_from_time(task.ended_at),
        update_time=timestamp_from_time(task.updated_at),
    )


def proto_from_news(news: News[Task]) -> tasks_pb2.TaskChanges:
    """What changed of the tasks of an account, as a message."""
    return tasks_pb2.TaskChanges(
        account_id=news.account_id,
        reader=news.reader,
        tasks=map(proto_from_task, news.items),
        cursor=news.cursor,
    )


def proto_from_log_entry(entry: LogEntry) -> tasks_pb2.LogEntry:
    """A line of a log as a message."""
    return tasks_pb2.LogEntry(
        level=entry.level,
        code=entry.code,
        message=entry.message,
        log_time=timestamp_from_time(entry.at),
    )


def proto_from_event(
    event: TextEvent | Alive | Terminal,
) -> tasks_pb2.WatchTextEventsResponse:
    """An event of a text stream as a message."""
    match event:
        case Delta(sequence, content):
            delta = tasks_pb2.TextDelta(sequence=sequence, content=content)
            return tasks_pb2.WatchTextEventsResponse(delta=delta)
        case Reset(sequence, attempt):
            reset = tasks_pb2.TextReset(sequence=sequence, attempt=attempt)
            return tasks_pb2.WatchTextEventsResponse(reset=reset)
        case Terminal(status, text):
            terminal = tasks_pb2.TextTerminal(
                status=_STATUSES[status],
                final_text=text if status == "succeeded" else None,
                text_draft=text if status == "failed" else None,
            )
            return tasks_pb2.WatchTextEventsResponse(terminal=terminal)
        case Alive():
            return tasks_pb2.WatchTextEventsResponse(alive=tasks_pb2.Alive())
