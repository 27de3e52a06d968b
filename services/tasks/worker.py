"""The worker: claims tasks while it has room, does them, hands them back when it has to go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from servicekit import postgres
from servicekit.errors import Failure
from servicekit.ids import new_id
from servicekit.notifications import listening
from servicekit.pauses import spread
from servicekit.telemetry import Metrics, logger, metrics_served
from services.tasks.domain.failures import LeaseLost
from services.tasks.domain.tasks import FAULT
from services.tasks.execution import Execution
from services.tasks.models import TextModels, text_models
from services.tasks.settings import WorkerSettings
from services.tasks.store import READY_CHANNEL
from services.tasks.work_store import Claim, WorkStore


class Worker:
    """Does tasks, several at once, as children of a task group."""

    def __init__(
        self,
        store: WorkStore,
        models: TextModels,
        settings: WorkerSettings,
        children: asyncio.TaskGroup,
    ) -> None:
        self._store = store
        self._models = models
        self._settings = settings
        self._terms = settings.terms()
        self._children = children
        self._running: dict[asyncio.Task[None], Claim] = {}
        self._news = asyncio.Event()
        self._stopping = False
        self._log = logger("tasks.worker")

    def wake(self) -> None:
        """Has the worker look for tasks, if it has room. Never waits."""
        self._news.set()

    def stop(self) -> None:
        """Has the worker claim no more. Never waits."""
        self._stopping = True
        self.wake()

    async def work(self) -> None:
        """Takes tasks on until told to stop; those under way go on after that."""
        while not self._stopping:
            self._news.clear()
            while self._has_room() and await self._take_one():
                pass
            await self._news.wait()

    async def sweep(self) -> None:
        """Now and then fails tasks that were lost too often, and wakes the worker, for ever."""
        while True:
            try:
                while task_id := await self._store.fail_lost(_new_owner(), self._terms):
                    self._log.warning("a task was lost with its workers", task_id=task_id)
            except Failure as failure:
                self._log.warning("lost tasks were not looked for", why=failure.detail)
            self.wake()
            await asyncio.sleep(spread(self._settings.poll_seconds))

    async def drain(self) -> None:
        """Lets tasks under way end within the grace period, and hands back the rest (TK8)."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.drain_seconds)
        left = dict(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        await asyncio.gather(*map(self._hand_back, left.values()))

    def _has_room(self) -> bool:
        return not self._stopping and len(self._running) < self._settings.concurrency

    async def _take_one(self) -> bool:
        """Takes one task on, if there is one; whether there was."""
        asked_at = asyncio.get_running_loop().time()
        try:
            claim = await self._store.claim(_new_owner(), self._terms)
        except Failure as failure:
            self._log.warning("no task could be claimed", why=failure.detail)
            return False
        if claim is None:
            return False
        execution = Execution(self._store, self._models, self._settings, claim, asked_at)
        task = self._children.create_task(self._perform(execution, claim))
        self._running[task] = claim
        task.add_done_callback(self._ended)
        return True

    async def _perform(self, execution: Execution, claim: Claim) -> None:
        """Does a task; whatever goes wrong ends this task and no other."""
        log = self._log.bind(task_id=claim.task_id, attempt=claim.attempt)
        log.info("claimed")
        try:
            ending = await execution.run()
        except* LeaseLost:
            log.warning("the lease was lost")
        except* Exception:
            log.exception("fault")
            with suppress(Failure):  # its lease expires then
                await self._store.fail(claim, FAULT)
        else:
            log.info("ended", code=ending.machine_word if ending else "succeeded")

    async def _hand_back(self, claim: Claim) -> None:
        log = self._log.bind(task_id=claim.task_id, attempt=claim.attempt)
        try:
            await self._store.hand_back(claim)
        except Failure as failure:
            # It had ended, or its lease expires.
            log.warning("not handed back", why=failure.detail)
        else:
            log.info("handed back")

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self.wake()


@asynccontextmanager
async def working(
    store: WorkStore, models: TextModels, settings: WorkerSettings
) -> AsyncIterator[Worker]:
    """A worker that does tasks inside the block. Leaving it is the drain."""
    async with asyncio.TaskGroup() as children:
        worker = Worker(store, models, settings, children)
        claiming = children.create_task(worker.work())
        sweeping = children.create_task(worker.sweep())
        try:
            yield worker
        finally:
            sweeping.cancel()
            worker.stop()
            # Not cancelled: a task that is being claimed would be nobody's until its lease expires.
            await asyncio.wait([claiming])
            await worker.drain()


@asynccontextmanager
async def running(settings: WorkerSettings) -> AsyncIterator[None]:
    """Does tasks inside the block."""
    url = settings.database.database_url
    with metrics_served(Metrics(), settings.metrics_listen):
        async with (
            postgres.connected(settings.database, application="tasks-worker") as database,
            working(WorkStore(database), text_models(), settings) as worker,
            listening(url, READY_CHANNEL, heard=lambda _: worker.wake(), missed=worker.wake),
        ):
            yield


def _new_owner() -> str:
    return new_id("ow")
