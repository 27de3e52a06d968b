"""Group commit: requests that came meanwhile share a transaction, those of many canvases too."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from servicekit.errors import Unavailable
from servicekit.postgres import Contention
from services.canvas.batch import Applied, decide, media_named
from services.canvas.domain.edits import touched
from services.canvas.domain.failures import ConcurrentWrite, StorageExceeded
from services.canvas.domain.limits import Limits, growth
from services.canvas.domain.media import NOTHING_KNOWN
from services.canvas.domain.mutation import Mutation
from services.canvas.feed import Feed
from services.canvas.store import Asked, CanvasStore, Decided, Line, Saved, Session

MAX_REQUESTS = 64
MAX_OPERATIONS = 500
# While one line is at work, canvases gather for its next transaction; another one only helps out
# where the database has not answered the first for so long.
LATE_SECONDS = 0.05

Key = tuple[str, str]


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its canvas."""

    mutation: Mutation
    answer: asyncio.Future[Applied]


@dataclass(eq=False)
class _Batch:
    """Requests for one canvas that are committed together."""

    key: Key
    waiting: list[_Waiting]

    @property
    def mutations(self) -> list[Mutation]:
        return [waiting.mutation for waiting in self.waiting]

    def answer(self, answers: Sequence[Applied | Exception]) -> None:
        for waiting, answer in zip(self.waiting, answers, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(answer, Applied):
                waiting.answer.set_result(answer)
            else:
                waiting.answer.set_exception(answer)

    def fail(self, error: Exception) -> None:
        self.answer([error for _ in self.waiting])


class Commits:
    """Commits requests: with each transaction those that came meanwhile.

    A canvas that somebody else has, that is to be made, or whose account may not grow so much is
    left out and committed alone, in its turn; the others never wait for it. Half of `lines`
    connections are used each way, at least one. Nothing is kept of a canvas once nobody waits for
    it.
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
        self._idle_together = max(1, lines // 2)
        self._idle_alone = max(1, lines - lines // 2)
        # Of those that work together, how many are not late.
        self._on_time = 0
        self._waiting: dict[Key, deque[_Waiting]] = {}
        # Those of the waiting that nobody works at, and what was left out.
        self._ready: deque[Key] = deque()
        self._alone: deque[_Batch] = deque()

    async def apply(self, account_id: str, mutation: Mutation) -> Applied:
        """Commits a request once, however often it is sent. Raises what it fails with."""
        return await self.begin(account_id, mutation)

    def begin(self, account_id: str, mutation: Mutation) -> asyncio.Future[Applied]:
        """What `apply` will return or raise. Once cancelled, a request is not begun any more."""
        key = (account_id, mutation.canvas_id)
        waiting = _Waiting(mutation, asyncio.get_running_loop().create_future())
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = queue = deque()
            self._is_ready(key)
        queue.append(waiting)
        return waiting.answer

    def _is_ready(self, key: Key) -> None:
        self._ready.append(key)
        self._help()

    def _help(self) -> None:
        """Starts a line, unless one is at work that is not late."""
        if self._ready and self._idle_together and not self._on_time:
            self._idle_together -= 1
            self._on_time += 1
            self._tasks.create_task(self._work_together())

    def _is_left(self, batch: _Batch) -> None:
        self._alone.append(batch)
        if self._idle_alone:
            self._idle_alone -= 1
            self._tasks.create_task(self._work_alone())

    def _is_over(self, batch: _Batch) -> None:
        if self._waiting[batch.key]:
            self._is_ready(batch.key)
        else:
            del self._waiting[batch.key]

    async def _work_together(self) -> None:
        """Commits what waits, all canvases in turn, until nothing does or another line does it."""
        async with self._store.line() as line:
            while self._ready and self._on_time == 1:
                batches = self._next()
                with self._watched():
                    left = await self._commit_together(line, batches) if batches else []
                for batch in batches:
                    if batch in left:
                        self._is_left(batch)
                    else:
                        self._is_over(batch)
            self._on_time -= 1
            self._idle_together += 1

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Has another line help out while what happens in the block is late."""
        is_late = False

        def late() -> None:
            nonlocal is_late
            is_late = True
            self._on_time -= 1
            self._help()

        timer = asyncio.get_running_loop().call_later(LATE_SECONDS, late)
        try:
            yield
        finally:
            timer.cancel()
            self._on_time += is_late

    async def _work_alone(self) -> None:
        """Commits what was left out, until nothing is."""
        while self._alone:
            batch = self._alone.popleft()
            await self._commit_alone(batch)
            self._is_over(batch)
        self._idle_alone += 1

    def _next(self) -> list[_Batch]:
        """Takes the next requests that somebody waits for, but not more work than one may bring."""
        batches: list[_Batch] = []
        requests = operations = 0
        while self._ready and requests < MAX_REQUESTS and operations <= MAX_OPERATIONS:
            key = self._ready[0]
            queue = self._waiting[key]
            taken: list[_Waiting] = []
            while queue and requests < MAX_REQUESTS:
                if not queue[0].answer.done():  # else whoever asked has gone
                    operations += len(queue[0].mutation.edits)
                    if operations > MAX_OPERATIONS and requests:
                        break
                    requests += 1
                    taken.append(queue[0])
                queue.popleft()
            if taken:
                batches.append(_Batch(key, taken))
                self._ready.popleft()
            elif not queue:
                del self._waiting[key]
                self._ready.popleft()
        return batches

    async def _commit_together(self, line: Line, batches: list[_Batch]) -> list[_Batch]:
        """Commits and answers all that can be without waiting for anybody. The others."""
        try:
            async with line.opened() as session:
                decided = await self._decided(session, batches)
                saved = await session.save(decided, self._limits)
        except Contention:
            return batches
        except Unavailable as error:
            for batch in batches:
                batch.fail(error)
            return []
        except Exception:
            # Whose fault it is shows when each is alone.
            return batches
        left: list[_Batch] = []
        for batch, each, how in zip(batches, decided, saved, strict=True):
            if how is Saved.YES:
                self._tell(batch, each)
            else:
                left.append(batch)
        return left

    async def _commit_alone(self, batch: _Batch) -> None:
        """Commits and answers the requests for a canvas, waiting for whoever has it."""
        try:
            async with self._store.locked(*batch.key) as session:
                (decided,) = await self._decided(session, [batch])
                (saved,) = await session.save([decided], self._limits)
                match saved:
                    case Saved.STALE:
                        raise Contention("The canvas was made by somebody else meanwhile.")
                    case Saved.EXCEEDED:
                        head = decided.outcome.canvas.head
                        assert head is not None
                        raise self._limits.exceeded_by(growth(decided.found.canvas.head, head))
                    case Saved.YES:
                        pass
        except StorageExceeded as exceeded:
            if len(batch.waiting) == 1:
                batch.fail(exceeded)
                return
            # Together they were over a limit that some of them may keep to alone.
            for waiting in batch.waiting:
                await self._commit_alone(_Batch(batch.key, [waiting]))
        except Contention:
            batch.fail(ConcurrentWrite())
        except Exception as error:
            batch.fail(error)
        else:
            self._tell(batch, decided)

    async def _decided(self, session: Session, batches: list[_Batch]) -> list[Decided]:
        """What the requests for each canvas come to."""
        found = await session.gather(
            [
                Asked(
                    *batch.key,
                    [mutation.mutation_id for mutation in batch.mutations],
                    touched(edit for mutation in batch.mutations for edit in mutation.edits),
                )
                for batch in batches
            ]
        )
        resources: list[Key] = []
        assets: list[Key] = []
        for batch, each in zip(batches, found, strict=True):
            account_id, _ = batch.key
            its_resources, its_assets = media_named(each.canvas, batch.mutations)
            resources += [(account_id, resource_id) for resource_id in its_resources]
            assets += [(account_id, asset_id) for asset_id in its_assets]
        known = await session.media(resources, assets) if resources or assets else {}

        return [
            Decided(
                *batch.key,
                each,
                decide(each, known.get(batch.key[0], NOTHING_KNOWN), batch.mutations),
            )
            for batch, each in zip(batches, found, strict=True)
        ]

    def _tell(self, batch: _Batch, decided: Decided) -> None:
        """Tells presence and whoever waits what was committed."""
        if decided.outcome.done:
            self._feed.changed(*batch.key, decided.found, decided.outcome)
        batch.answer(decided.outcome.answers)


@asynccontextmanager
async def committing(
    store: CanvasStore, feed: Feed, limits: Limits, *, lines: int
) -> AsyncIterator[Commits]:
    """Commits inside the block, which is left when all requests have been answered."""
    async with asyncio.TaskGroup() as tasks:
        yield Commits(store, feed, limits, tasks, lines=lines)
