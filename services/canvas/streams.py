"""Answers the mutations of a stream, each as soon as it is committed or refused."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc
from gesso.canvas.v1 import canvas_pb2

from servicekit.errors import Unavailable
from servicekit.interceptors import UNARY_SECONDS, Endings, code_of
from services.canvas.batch import Applied

MAX_IN_FLIGHT = 512
# Refusals have up to some 10 KiB.
MAX_ANSWERS = 100
# A mutation is measured and logged as the call that it stands for.
_METHOD = "/gesso.canvas.v1.CanvasService/ApplyOperations"

Begin = Callable[[canvas_pb2.Mutation], asyncio.Future[Applied]]
Convert = Callable[[Applied], canvas_pb2.ApplyOperationsResponse]


class Moving(Unavailable):
    """The stream ends here; another instance applies what was not answered."""

    def __init__(self) -> None:
        super().__init__("The server is moving; send what was not answered again.")


class MutationStream:
    """One stream.

    `begin` has a mutation applied, and is not waited for: one that is held up holds up no other.
    No more is read while `MAX_IN_FLIGHT` have not been answered, or their answers not taken.
    """

    def __init__(
        self, begin: Begin, convert: Convert, endings: Endings, draining: asyncio.Event
    ) -> None:
        self._begin = begin
        self._convert = convert
        self._endings = endings
        self._draining = draining
        self._loop = asyncio.get_running_loop()
        self._in_flight: set[asyncio.Future[Applied]] = set()
        self._answers: list[canvas_pb2.MutationAnswer] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def responses(
        self, requests: AsyncIterator[canvas_pb2.ApplyMutationsRequest]
    ) -> AsyncIterator[canvas_pb2.ApplyMutationsResponse]:
        """The answers, until the requests have ended or the server drains (CV26)."""
        # Not a task group: one must not span a yield, and would wrap the failure.
        reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(lambda _: self._news.set())
        leaving = asyncio.create_task(self._leave(reading))
        try:
            while not (reading.done() and not self._in_flight and not self._answers):
                if not self._answers:
                    await self._news.wait()
                self._news.clear()
                if self._answers:
                    answers = self._answers[:MAX_ANSWERS]
                    yield canvas_pb2.ApplyMutationsResponse(answers=answers)
                    del self._answers[: len(answers)]
                    self._room.set()
            if self._draining.is_set():
                raise Moving
            await reading
        finally:
            reading.cancel()
            leaving.cancel()
            for applied in list(self._in_flight):
                applied.cancel()

    async def _leave(self, reading: asyncio.Task[None]) -> None:
        """Has nothing more begun once the server drains."""
        await self._draining.wait()
        reading.cancel()

    async def _read(self, requests: AsyncIterator[canvas_pb2.ApplyMutationsRequest]) -> None:
        async for request in requests:
            for mutation in request.mutations:
                while len(self._in_flight) + len(self._answers) >= MAX_IN_FLIGHT:
                    self._room.clear()
                    await self._room.wait()
                self._start(mutation)

    def _start(self, mutation: canvas_pb2.Mutation) -> None:
        number, request_id, started = mutation.number, mutation.request_id, time.perf_counter()
        try:
            applied = self._begin(mutation)
        except Exception as error:
            self._refuse(number, request_id, started, error)
            return
        seconds = mutation.timeout_ms / 1000
        if not 0 < seconds < UNARY_SECONDS:
            seconds = UNARY_SECONDS
        # What nobody waits for any more is not begun.
        deadline = self._loop.call_later(seconds, applied.cancel)
        self._in_flight.add(applied)
        applied.add_done_callback(partial(self._end, number, request_id, started, deadline))

    def _end(
        self,
        number: int,
        request_id: str,
        started: float,
        deadline: asyncio.TimerHandle,
        applied: asyncio.Future[Applied],
    ) -> None:
        deadline.cancel()
        self._in_flight.discard(applied)
        if applied.cancelled():
            self._refuse(number, request_id, started, TimeoutError())
            return
        error = applied.exception()
        if error is not None:
            self._refuse(number, request_id, started, error)
            return
        self._endings.observe(_METHOD, grpc.StatusCode.OK, started)
        self._answer(
            canvas_pb2.MutationAnswer(number=number, applied=self._convert(applied.result()))
        )

    def _refuse(self, number: int, request_id: str, started: float, error: BaseException) -> None:
        status = self._endings.status(error, _METHOD, request_id=request_id)
        self._endings.observe(_METHOD, code_of(error), started)
        self._answer(canvas_pb2.MutationAnswer(number=number, status=status.SerializeToString()))

    def _answer(self, answer: canvas_pb2.MutationAnswer) -> None:
        self._answers.append(answer)
        self._news.set()
