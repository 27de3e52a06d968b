"""Group commit: all requests that wait for one canvas share a transaction, each all or none."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from servicekit.postgres import Contention
from services.canvas.batch import Applied, Found, decide, media_named
from services.canvas.domain.edits import touched
from services.canvas.domain.failures import ConcurrentWrite, StorageExceeded
from services.canvas.domain.limits import Limits
from services.canvas.domain.media import NOTHING_KNOWN, Known
from services.canvas.domain.mutation import Mutation
from services.canvas.feed import Feed
from services.canvas.store import CanvasStore, Line, Session

MAX_REQUESTS = 64
MAX_OPERATIONS = 500

Key = tuple[str, str]


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its canvas."""

    mutation: Mutation
    answer: asyncio.Future[Applied]


class Commits:
    """Commits requests: with each transaction all those of one canvas that came meanwhile.

    At most `lines` canvases are written at once, each over a connection that goes on to the next
    canvas. Nothing is kept of a canvas once nobody waits for it.
    """

    def __init__(
        self,
        store: CanvasStore,
        feed: Feed,
        limits: Limits,
        tasks: asyncio.TaskGroup,
        *,
        lines: int,
    ) -> None:
        self._store = store
        self._feed = feed
        self._limits = limits
        self._tasks = tasks
        self._idle_lines = lines
        self._waiting: dict[Key, deque[_Waiting]] = {}
        # Those of the waiting that no line works at.
        self._ready: deque[Key] = deque()

    async def apply(self, account_id: str, mutation: Mutation) -> Applied:
        """Commits a request once, however often it is sent. Raises what it fails with."""
        key = (account_id, mutation.canvas_id)
        waiting = _Waiting(mutation, asyncio.get_running_loop().create_future())
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = queue = deque()
            self._ready.append(key)
            if self._idle_lines:
                self._idle_lines -= 1
                self._tasks.create_task(self._work())
        queue.append(waiting)
        return await waiting.answer

    async def _work(self) -> None:
        """Commits what waits, canvas after canvas in turn, until nothing does."""
        async with self._store.line() as line:
            while self._ready:
                key = self._ready.popleft()
                queue = self._waiting[key]
                batch = _batch(queue)
                try:
                    if batch:
                        await self._commit(line, key, batch)
                except StorageExceeded:
                    # Together they were over a limit that some of them may keep to alone.
                    for waiting in batch:
                        await self._commit_alone(line, key, waiting)
                if queue:
                    self._ready.append(key)
                else:
                    del self._waiting[key]
            self._idle_lines += 1

    async def _commit_alone(self, line: Line, key: Key, waiting: _Waiting) -> None:
        try:
            await self._commit(line, key, [waiting])
        except StorageExceeded as exceeded:
            _answer(waiting, exceeded)

    async def _commit(self, line: Line, key: Key, batch: list[_Waiting]) -> None:
        """Commits requests together and answers them.

        Raises `StorageExceeded`, with nothing committed and nobody answered.
        """
        mutations = [waiting.mutation for waiting in batch]
        answers: Sequence[Applied | Exception]
        try:
            answers = await self._committed(line, key, mutations)
        except StorageExceeded:
            raise
        except Contention:
            answers = [ConcurrentWrite() for _ in batch]
        except Exception as error:
            answers = [error for _ in batch]
        for waiting, answer in zip(batch, answers, strict=True):
            _answer(waiting, answer)

    async def _committed(
        self, line: Line, key: Key, mutations: list[Mutation]
    ) -> Sequence[Applied | Exception]:
        """Commits requests, and what to answer each. Raises `StorageExceeded` and `Contention`."""
        ids = [mutation.mutation_id for mutation in mutations]
        objects = touched(edit for mutation in mutations for edit in mutation.edits)
        # First without waiting for anybody; then, if another process was quicker, in turn.
        for opening in (line.opened, line.locked):
            async with opening(*key) as canvas:
                found = await canvas.gather(ids, objects)
                known = await _known(canvas, found, mutations)

                outcome = decide(found, known, mutations)

                saved = not outcome.done or await canvas.save(found, outcome, self._limits)
            if saved:
                break
        else:
            raise Contention("The canvas was made by somebody else meanwhile.")
        if outcome.done:
            self._feed.changed(*key, found, outcome)
        return outcome.answers


@asynccontextmanager
async def committing(
    store: CanvasStore, feed: Feed, limits: Limits, *, lines: int
) -> AsyncIterator[Commits]:
    """Commits inside the block, which is left when all requests have been answered."""
    async with asyncio.TaskGroup() as tasks:
        yield Commits(store, feed, limits, tasks, lines=lines)


async def _known(canvas: Session, found: Found, mutations: list[Mutation]) -> Known:
    resources, assets = media_named(found.canvas, mutations)
    if not resources and not assets:
        return NOTHING_KNOWN
    return await canvas.media(resources, assets)


def _batch(queue: deque[_Waiting]) -> list[_Waiting]:
    """Takes the next requests that somebody waits for, but not more work than one may bring."""
    batch: list[_Waiting] = []
    room = MAX_OPERATIONS
    while queue and len(batch) < MAX_REQUESTS:
        if not queue[0].answer.done():  # else whoever asked has gone
            room -= len(queue[0].mutation.edits)
            if room < 0 and batch:
                break
            batch.append(queue[0])
        queue.popleft()
    return batch


def _answer(waiting: _Waiting, answer: Applied | Exception) -> None:
    if waiting.answer.done():
        return
    if isinstance(answer, Applied):
        waiting.answer.set_result(answer)
    else:
        waiting.answer.set_exception(answer)
