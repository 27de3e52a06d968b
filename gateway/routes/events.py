"""The one stream that a page needs: its jobs, its tasks, and the texts that it shows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Annotated

import grpc
import msgspec
from gesso.tasks.v1 import tasks_pb2
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from gateway import sse
from gateway.auth import Doorkeeper
from gateway.endpoints import Call, Input, Media, endpoint
from gateway.routes.generations import language_of
from gateway.routes.outbox import (
    JOB,
    MAX_TEXTS,
    TASK,
    Outbox,
    Place,
    TextError,
    place_from_header,
)
from gateway.texts import Texts
from gateway.watching import Watchings
from servicekit.errors import Failure, Unavailable
from servicekit.identity import Behalf
from servicekit.pauses import growing
from servicekit.telemetry import logger

HEARTBEAT_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0

_TEXT = r"[A-Za-z0-9_-]{1,64}@(?:0|[1-9][0-9]{0,17})"

_log = logger("gateway.events")


class EventsQuery(Input, frozen=True):
    """Texts to follow, each as `taskId@after`: the last sequence number seen, 0 from the start."""

    text: Annotated[
        list[Annotated[str, Meta(pattern=f"^{_TEXT}$")]], Meta(max_length=MAX_TEXTS)
    ] = msgspec.field(default_factory=list)


def asked_texts(query: EventsQuery, place: Place) -> dict[str, int | None]:
    """The texts that are asked for, each from where the reader has got to."""
    texts: dict[str, int | None] = {}
    for text in query.text:
        task_id, _, after = text.rpartition("@")
        known = place.texts.get(task_id, 0)
        texts[task_id] = None if known is None else max(known, int(after))
    return texts


class EventsRoutes:
    """Events of who is signed in."""

    def __init__(
        self,
        doorkeeper: Doorkeeper,
        watchings: Watchings,
        texts: Texts,
        draining: asyncio.Event,
        *,
        recheck_seconds: float,
    ) -> None:
        self._doorkeeper = doorkeeper
        self._watchings = watchings
        self._texts = texts
        self._draining = draining
        self._recheck_seconds = recheck_seconds

    @endpoint(
        "GET",
        "/api/events",
        tag="events",
        query=EventsQuery,
        answers={
            200: Media(
                "text/event-stream",
                "job, task, text, text-reset, text-terminal and text-error events.",
            )
        },
        refusals=("invalid_cursor",),
    )
    async def events(self, call: Call[None, EventsQuery]) -> Response:
        """Hear of every job and task as it changes, and follow the texts of some.

        `job` and `task` events are items of their lists; of each the newest state, which may come
        again. At first those that are not over; with `Last-Event-ID` also what ended since. Each
        `text=<taskId>@<after>` adds `text` and `text-reset` events, then `text-terminal`, without
        gap or repeat, or `text-error` for a text that cannot be read.
        """
        place = place_from_header(call.request.headers.get("last-event-id", ""))
        place.texts = asked_texts(call.query, place)
        return sse.response(self._stream(call.request, call.behalf, place))

    async def _stream(self, request: Request, behalf: Behalf, place: Place) -> AsyncIterator[bytes]:
        """The stream, begun with a comment."""
        outbox = Outbox(place)
        account_id, language = behalf.account_id or "", language_of(request)
        jobs, tasks = self._watchings.jobs, self._watchings.tasks
        yield sse.CONNECTED
        with ExitStack() as stack:
            stack.enter_context(outbox.followed(jobs, account_id, "job", JOB, language))
            stack.enter_context(outbox.followed(tasks, account_id, "task", TASK, language))
            # Not a task group: one must not span a yield.
            running = [
                asyncio.create_task(each)
                for each in (
                    *(
                        self._follow(outbox, behalf, task_id, after)
                        for task_id, after in list(place.texts.items())
                        if after is not None
                    ),
                    self._recheck(outbox, request),
                    _end_at(self._draining, outbox),
                )
            ]
            try:
                while not outbox.is_over:
                    yield await outbox.taken(within_seconds=HEARTBEAT_SECONDS) or sse.HEARTBEAT
            finally:
                for each in running:
                    each.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        if self._draining.is_set():
            yield sse.MOVED

    async def _follow(self, outbox: Outbox, behalf: Behalf, task_id: str, after: int) -> None:
        """Passes the text of a task on, no faster than it is read; waits while tasks is away."""
        request = tasks_pb2.WatchTextEventsRequest(task_id=task_id, after_sequence=after)
        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                async for answer in self._texts.events(request, behalf):
                    pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                    await outbox.put_text(task_id, answer)
                return
            except Unavailable:
                await asyncio.sleep(next(pauses))
            except (Failure, grpc.aio.AioRpcError) as error:
                _log.warning("a text was not read", why=str(error))
                word = error.machine_word if isinstance(error, Failure) else Failure.reason
                await outbox.put_text(task_id, TextError(task_id, word))
                return

    async def _recheck(self, outbox: Outbox, request: Request) -> None:
        """Looks now and then whether the reader is still signed in."""
        while True:
            await asyncio.sleep(self._recheck_seconds)
            with suppress(Failure):
                if await self._doorkeeper.asker(request, slides=False) is None:
                    outbox.end()


async def _end_at(over: asyncio.Event, outbox: Outbox) -> None:
    await over.wait()
    outbox.end()
