"""Has canvases changed: over a few streams that many requests share, else by a call each."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from google.rpc.status_pb2 import Status

from servicekit.background import background
from servicekit.client import CALL_SECONDS, Client, held
from servicekit.errors import Unavailable
from servicekit.identity import Behalf
from servicekit.pauses import spread
from servicekit.status import error_from_message, no_answer
from servicekit.telemetry import logger

# What a stream has no room for goes by a call.
MAX_IN_FLIGHT = 256
MAX_BYTES_IN_FLIGHT = 4 * 1024 * 1024
MAX_MUTATION_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 256 * 1024
# Shorter than connections that age are left to finish, so that those cut none.
RENEW_SECONDS = 50.0
# An instance that is well tells at once that a stream has reached it.
CONNECT_SECONDS = 5.0

Applied = canvas_pb2.ApplyOperationsResponse


class StreamLost(Exception):  # noqa: N818 - facts are named without a suffix
    """The stream ended before the answer came, or its instance could not tell."""


class Stream:
    """One stream: what is asked while a message is being sent shares the next one.

    `on_late` is called once an answer did not come in time, and the stream is lost.
    """

    def __init__(self, on_late: Callable[[], None] = lambda: None) -> None:
        self._on_late = on_late
        self._numbers = count(1)
        self._waiting: deque[tuple[int, canvas_pb2.Mutation]] = deque()
        # With the size and the deadline of each.
        self._asked: dict[int, tuple[asyncio.Future[Applied], int, asyncio.TimerHandle]] = {}
        self._bytes_in_flight = 0
        self._news = asyncio.Event()
        self.is_over = False

    def ask(
        self, request: canvas_pb2.ApplyOperationsRequest, behalf: Behalf, seconds: float
    ) -> asyncio.Future[Applied] | None:
        """The answer to come, or None if there is no room for the request.

        It is, or raises, what `Client.call` does, or raises `StreamLost`.
        """
        size_bytes = request.ByteSize()
        if (
            self.is_over
            or size_bytes > MAX_MUTATION_BYTES
            or len(self._asked) >= MAX_IN_FLIGHT
            or self._bytes_in_flight + size_bytes > MAX_BYTES_IN_FLIGHT
        ):
            return None
        number = next(self._numbers)
        mutation = canvas_pb2.Mutation(
            number=number,
            account_id=behalf.account_id or "",
            request_id=behalf.request_id or "",
            timeout_ms=max(1, int(seconds * 1000)),
            request=request,
        )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Applied] = loop.create_future()
        self._asked[number] = answer, size_bytes, loop.call_later(seconds, self._is_late, answer)
        self._bytes_in_flight += size_bytes
        self._waiting.append((number, mutation))
        self._news.set()
        return answer

    def end(self) -> None:
        """Takes no more; what was asked is still answered."""
        self.is_over = True
        self._news.set()

    def lose(self) -> None:
        """Fails what was not answered."""
        self.end()
        for answer, _, deadline in self._asked.values():
            deadline.cancel()
            if not answer.done():
                answer.set_exception(StreamLost())
        self._asked.clear()
        self._waiting.clear()

    async def requests(self) -> AsyncIterator[canvas_pb2.ApplyMutationsRequest]:
        """What to send: whatever has gathered, at once."""
        while True:
            while not self._waiting and not self.is_over:
                self._news.clear()
                await self._news.wait()
            if not self._waiting:
                return
            request = self._next()
            if request.mutations:
                yield request

    def receive(self, response: canvas_pb2.ApplyMutationsResponse) -> None:
        """Gives the answers to who waits for them."""
        for answered in response.answers:
            answer = self._forget(answered.number)
            if answer is None or answer.done():
                continue
            if answered.HasField("applied"):
                answer.set_result(answered.applied)
            else:
                answer.set_exception(self._refusal(Status.FromString(answered.status)))

    def _refusal(self, status: Status) -> Exception:
        error = error_from_message(status)
        if isinstance(error, Unavailable) and error.machine_word == Unavailable.reason:
            # Another instance may have its database.
            self.end()
            return StreamLost()
        return error

    def _is_late(self, answer: asyncio.Future[Applied]) -> None:
        # Another stream may find an instance that answers.
        if not answer.done():
            answer.set_exception(no_answer())
        self.lose()
        self._on_late()

    def _next(self) -> canvas_pb2.ApplyMutationsRequest:
        mutations: list[canvas_pb2.Mutation] = []
        size_bytes = 0
        while self._waiting and size_bytes < MAX_MESSAGE_BYTES:
            number, mutation = self._waiting.popleft()
            answer, its_bytes, _ = self._asked[number]
            if answer.done():  # whoever asked has gone
                self._forget(number)
                continue
            size_bytes += its_bytes
            mutations.append(mutation)
        return canvas_pb2.ApplyMutationsRequest(mutations=mutations)

    def _forget(self, number: int) -> asyncio.Future[Applied] | None:
        asked = self._asked.pop(number, None)
        if asked is None:
            return None
        answer, size_bytes, deadline = asked
        deadline.cancel()
        self._bytes_in_flight -= size_bytes
        return answer


class Mutations:
    """The way to the canvas service for changes of canvases.

    Those of one canvas go over one stream while it holds, so that they meet in one instance. What
    a stream has no room for, has not answered when it is lost, or answers with `Unavailable` goes
    by a call.
    """

    def __init__(self, client: Client, *, streams: int) -> None:
        self._client = client
        self._stub = CanvasServiceStub(client.channel)
        self._streams: list[Stream | None] = [None] * streams

    async def apply(
        self,
        request: canvas_pb2.ApplyOperationsRequest,
        behalf: Behalf,
        *,
        seconds: float = CALL_SECONDS,
    ) -> Applied:
        """The answer to a request. Raises what `Client.call` does."""
        due = asyncio.get_running_loop().time() + seconds
        place = hash((behalf.account_id, request.canvas_id)) % len(self._streams)
        stream = self._streams[place]
        answer = stream.ask(request, behalf, seconds) if stream is not None else None
        if stream is not None and answer is not None:
            try:
                return await answer
            except StreamLost:
                seconds = max(0.0, due - asyncio.get_running_loop().time())
        return await self._client.call(self._stub.ApplyOperations, request, behalf, seconds=seconds)

    async def keep(self, place: int) -> None:
        """Holds one of the streams, for ever, and renews it now and then."""
        log = logger("gateway.mutations")

        async def one() -> None:
            while True:
                await self._run(place)

        await held(one, lost=lambda why: log.warning("edits go by calls", why=why))

    async def _run(self, place: int) -> None:
        """Runs a stream until it was renewed or an answer is late. Raises why else it was lost."""
        loop = asyncio.get_running_loop()
        patience = asyncio.timeout(None)
        stream = Stream(lambda: patience.reschedule(loop.time()))
        renewing = loop.call_later(spread(RENEW_SECONDS), stream.end)
        requests = stream.requests()
        try:
            async with (
                self._client.exchange(
                    self._stub.ApplyMutations, requests, Behalf(), connect_seconds=CONNECT_SECONDS
                ) as responses,
                patience,
            ):
                self._streams[place] = stream
                async for response in responses:
                    stream.receive(response)
            if not stream.is_over:
                raise Unavailable("The stream was ended.")
        except TimeoutError:
            if not patience.expired():
                raise
        finally:
            renewing.cancel()
            self._streams[place] = None
            stream.lose()


@asynccontextmanager
async def mutating(client: Client, *, streams: int) -> AsyncIterator[Mutations]:
    """A way to the canvas service, with its streams inside the block."""
    mutations = Mutations(client, streams=streams)
    async with background(*(mutations.keep(place) for place in range(streams))):
        yield mutations
