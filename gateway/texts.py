"""The text of a task as it comes, also when an instance of tasks goes away."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from gesso.tasks.v1 import tasks_pb2 as pb
from gesso.tasks.v1.tasks_pb2_grpc import TasksServiceStub

from gateway import sse
from servicekit.client import Client
from servicekit.errors import Failure, Unavailable
from servicekit.identity import Behalf

# An instance that goes away is replaced by another one within a second or two.
RESUME_TRIES = 5
RESUME_SECONDS = 0.5


class Texts:
    """The texts of all tasks, until the gateway goes away."""

    def __init__(self, tasks: Client, draining: asyncio.Event) -> None:
        self._tasks = tasks
        self._stub = TasksServiceStub(tasks.channel)
        self._draining = draining

    async def events(
        self, request: pb.WatchTextEventsRequest, behalf: Behalf
    ) -> AsyncIterator[pb.WatchTextEventsResponse]:
        """The events that are asked for, to the terminal one, or until the gateway goes away.

        Raises what the first try fails with; later what is not mended by going on elsewhere.
        """
        begun = False
        tries_left = RESUME_TRIES
        while not self._draining.is_set():
            try:
                async with self._tasks.stream(
                    self._stub.WatchTextEvents, request, behalf
                ) as answers:
                    async for answer in sse.until(self._draining, answers):
                        begun, tries_left = True, RESUME_TRIES
                        yield answer
                        request.after_sequence = max(request.after_sequence, sequence_of(answer))
                        if answer.WhichOneof("event") == "terminal":
                            return
            except (Failure, grpc.aio.AioRpcError) as error:
                tries_left -= 1
                if not begun or tries_left == 0 or not isinstance(error, Unavailable):
                    raise
            await asyncio.sleep(RESUME_SECONDS)


def sequence_of(answer: pb.WatchTextEventsResponse) -> int:
    """The sequence number of a delta or reset, 0 for other events."""
    return max(answer.delta.sequence, answer.reset.sequence)
