"""The worker process: claims jobs, keeps their leases alive, and lets them end."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

import grpc

from providers.image import ImageModel
from providers.studio.image import StudioImages
from servicekit import client
from servicekit.errors import Failure
from servicekit.objects import Objects
from servicekit.pauses import spread
from servicekit.telemetry import Metrics, logger, metrics_served
from services.generation.attempts import Attempts
from services.generation.domain.budget import Deadlines, deadlines
from services.generation.domain.failures import LeaseFenced
from services.generation.domain.jobs import KINDS, UNEXPLAINED, ClaimedJob, Held
from services.generation.domain.params import DEFAULT_MODEL
from services.generation.executor import Executor
from services.generation.journal import QueueJournal
from services.generation.outputs import Outputs
from services.generation.pictures import Pictures
from services.generation.queue import Queue
from services.generation.settings import WorkerSettings

MAX_RENEWAL_SECONDS = 30.0
LEASES_A_CALL = 100
# How long a worker that stops tries to tell the queue of a job that it had to stop.
STOPPING_SECONDS = 10.0
STOPPED = "The worker was stopped before the job was done."


@dataclass(eq=False)
class _Attempt:
    """A job that is worked on."""

    job: ClaimedJob
    deadlines: Deadlines
    task: asyncio.Task[None]
    is_stopped: bool = False
    is_taken_back: bool = False


class Worker:
    """The jobs that this process works on."""

    def __init__(self, queue: Queue, attempts: Attempts, settings: WorkerSettings) -> None:
        self._queue = queue
        self._attempts = attempts
        self._settings = settings
        # Those within their budget hold a slot, and their leases are kept alive.
        self._holding: set[_Attempt] = set()
        self._late: set[_Attempt] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._slot_is_free = asyncio.Event()
        self._draining = asyncio.Event()
        self._log = logger("generation.worker")

    async def claim_until_drained(self) -> None:
        """Claims jobs for the free slots. A claim without an answer is repeated as it was."""
        claim_id = uuid4().hex
        wait = timedelta(milliseconds=self._settings.poll_interval_ms)
        while not self._draining.is_set():
            free = self._settings.concurrency - len(self._holding)
            if free <= 0:
                self._slot_is_free.clear()
                await self._slot_is_free.wait()
                continue
            try:
                jobs = await self._queue.claim(claim_id, free, wait)
            except (Failure, grpc.aio.AioRpcError) as error:
                self._log.warning("the queue did not answer", why=str(error))
                await self._pause(wait)
                continue
            claim_id = uuid4().hex
            for job in jobs:
                self._start(job)

    async def renew_forever(self) -> None:
        """Keeps the leases of jobs within their budget; stops work on those that are lost."""
        interval = min(self._settings.lease_seconds / 3, MAX_RENEWAL_SECONDS)
        pause = interval
        while True:
            await asyncio.sleep(pause)
            pause = interval
            for some in _chunks(list(self._holding), LEASES_A_CALL):
                try:
                    held = await self._queue.renew(
                        [attempt.job for attempt in some], seconds=interval
                    )
                except (Failure, grpc.aio.AioRpcError) as error:
                    self._log.warning("leases were not renewed", why=str(error))
                    pause = interval / 4
                    continue
                for attempt, how in zip(some, held, strict=True):
                    if how is not Held.OK and attempt in self._holding:
                        self._log.warning("lease lost", job_id=attempt.job.job_id, why=how)
                        attempt.is_taken_back = how is Held.CANCELLED
                        attempt.task.cancel()

    async def drained(self, claiming: asyncio.Task[None]) -> None:
        """Claims nothing more, and waits for what was claimed; in the end stops and fails it."""
        self._draining.set()
        self._slot_is_free.set()
        until = asyncio.get_running_loop().time() + self._settings.drain_seconds
        # The claim under way may have got jobs: those are worked on too.
        await asyncio.wait([claiming], timeout=self._settings.drain_seconds)
        claiming.cancel()
        left = until - asyncio.get_running_loop().time()
        if self._watches:
            await asyncio.wait(self._watches, timeout=max(left, 0))
        for attempt in self._holding | self._late:
            attempt.is_stopped = True
            attempt.task.cancel()
        if self._watches:
            await asyncio.wait(self._watches)

    def _start(self, job: ClaimedJob) -> None:
        settings = self._settings
        is_long = job.kind in KINDS and KINDS[job.kind].is_long
        budget = settings.long_job_timeout_seconds if is_long else settings.job_timeout_seconds
        limits = deadlines(budget, started=asyncio.get_running_loop().time())
        task = asyncio.create_task(self._attempts.carry_out(job, limits))
        attempt = _Attempt(job, limits, task)
        self._holding.add(attempt)
        watch = asyncio.create_task(self._watch(attempt))
        self._watches.add(watch)
        watch.add_done_callback(self._watched)
        self._log.info("claimed", job_id=job.job_id, attempt=job.attempt)

    def _watched(self, watch: asyncio.Task[None]) -> None:
        self._watches.discard(watch)
        error = None if watch.cancelled() else watch.exception()
        if error is not None:
            self._log.error("fault", exc_info=error)

    async def _watch(self, attempt: _Attempt) -> None:
        """Sees an attempt to its end.

        Past its budget it loses its slot and its lease is not renewed, but it goes on: what it
        still writes within the lease counts (seed 004).
        """
        left = attempt.deadlines.job - asyncio.get_running_loop().time()
        await asyncio.wait([attempt.task], timeout=left)
        self._holding.discard(attempt)
        self._slot_is_free.set()
        if not attempt.task.done():
            self._log.warning("over budget", job_id=attempt.job.job_id)
            self._late.add(attempt)
            await asyncio.wait([attempt.task], timeout=self._settings.lease_seconds)
            self._late.discard(attempt)
            attempt.task.cancel()
            await asyncio.wait([attempt.task])
        try:
            await self._conclude(attempt)
        finally:
            is_unwanted = attempt.is_taken_back or attempt.is_stopped
            await self._attempts.end(attempt.job, is_unwanted=is_unwanted)

    async def _conclude(self, attempt: _Attempt) -> None:
        job_id = attempt.job.job_id
        if attempt.task.cancelled():
            if attempt.is_stopped:
                # The lease tells who cannot be told in time.
                until = asyncio.get_running_loop().time() + STOPPING_SECONDS
                limits = replace(attempt.deadlines, job=min(until, attempt.deadlines.job))
                await self._fail(attempt, STOPPED, limits)
            return
        match attempt.task.exception():
            case None:
                self._log.info("ended", job_id=job_id)
            case LeaseFenced():
                self._log.warning("fenced", job_id=job_id)
            case Failure() | grpc.aio.AioRpcError() as error:
                self._log.warning("the queue was not told", job_id=job_id, why=str(error))
            case error:
                self._log.error("fault", job_id=job_id, exc_info=error)
                await self._fail(attempt, UNEXPLAINED, attempt.deadlines)

    async def _fail(self, attempt: _Attempt, error: str, limits: Deadlines) -> None:
        try:
            await self._attempts.fail(attempt.job, error, limits)
        except (Failure, grpc.aio.AioRpcError) as failure:
            self._log.warning("not failed", job_id=attempt.job.job_id, why=str(failure))

    async def _pause(self, length: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(spread(length.total_seconds())):
                await self._draining.wait()


@asynccontextmanager
async def running(
    settings: WorkerSettings, providers: Mapping[str, ImageModel] | None = None
) -> AsyncIterator[None]:
    """Works inside the block. What was claimed ends before the block is left.

    `providers` are the models by name, those that people can choose if not given.
    """
    models = {DEFAULT_MODEL: StudioImages()} if providers is None else providers
    tokens = settings.tokens()
    async with (
        client.connected(
            settings.generation_address, caller="generation-worker", tokens=tokens
        ) as generation,
        client.connected(
            settings.canvas_address, caller="generation-worker", tokens=tokens
        ) as canvas,
        asyncio.TaskGroup() as tasks,
    ):
        lease = timedelta(seconds=settings.lease_seconds)
        queue = Queue(generation, settings.worker_id(), lease)
        outputs = Outputs(Objects.at(settings.objects.objects_url), canvas)
        pictures = Pictures(QueueJournal(generation, settings.worker_id()), models)
        worker = Worker(queue, Attempts(queue, Executor(pictures, outputs)), settings)
        with metrics_served(Metrics(), settings.metrics_listen):
            claiming = tasks.create_task(worker.claim_until_drained())
            renewing = tasks.create_task(worker.renew_forever())
            try:
                yield
            finally:
                await worker.drained(claiming)
                renewing.cancel()


def _chunks(attempts: Sequence[_Attempt], size: int) -> list[Sequence[_Attempt]]:
    return [attempts[start : start + size] for start in range(0, len(attempts), size)]
