"""One attempt at a job of the queue: carried out, and the queue is told."""

from functools import partial

from servicekit.errors import Unavailable
from services.generation.domain.budget import Deadlines
from services.generation.domain.jobs import ClaimedJob, Phase
from services.generation.executor import Executor, NotMade
from services.generation.patience import answered
from services.generation.queue import Queue


class Attempts:
    """How this worker carries out attempts."""

    def __init__(self, queue: Queue, executor: Executor) -> None:
        self._queue = queue
        self._executor = executor

    async def carry_out(self, job: ClaimedJob, deadlines: Deadlines) -> None:
        """Makes what the job asks for and completes it, or fails it.

        Raises `LeaseFenced` if the job is another's by now, and `Unavailable` if the queue could
        not be told in time.
        """
        try:
            outputs = await self._executor.outputs(job, deadlines, partial(self._report, job))
        except NotMade as failure:
            await self.fail(job, failure.sentence, deadlines)
            await self.end(job, is_unwanted=True)
        else:
            await answered(lambda: self._queue.complete(job, outputs), until=deadlines.job)

    async def end(self, job: ClaimedJob, *, is_unwanted: bool) -> None:
        """Puts away what is known of an attempt that ended; cancels what nobody wants any more."""
        await self._executor.end(job, is_unwanted=is_unwanted)

    async def fail(self, job: ClaimedJob, error: str, deadlines: Deadlines) -> None:
        """Ends the attempt with an error."""
        await answered(lambda: self._queue.fail(job, error), until=deadlines.job)

    async def _report(self, job: ClaimedJob, phase: Phase, progress: int) -> None:
        """Reports a phase; one that got no answer once more, and no other (seed 004)."""
        try:
            await self._queue.update_phase(job, phase, progress)
        except Unavailable:
            await self._queue.update_phase(job, phase, progress)
