"""One attempt at a job: the provider makes it, the store keeps it, the queue is told."""

import json
from functools import partial

import grpc

from providers.image import Capacity, ImageFailure, Outage, Refused, TimedOut, Uncertain
from servicekit.errors import Failure, Unavailable
from servicekit.telemetry import logger
from services.generation.domain.budget import Deadlines
from services.generation.domain.failures import LeaseFenced
from services.generation.domain.jobs import UNEXPLAINED, ClaimedJob, Output, Phase
from services.generation.domain.params import image_params
from services.generation.outputs import Outputs
from services.generation.patience import answered
from services.generation.pictures import Pictures
from services.generation.queue import Queue

GENERATED_PROGRESS = 80

NOT_KEPT = "The result could not be stored."
_SENTENCES: dict[type[ImageFailure], str] = {
    Refused: "The model refused this prompt.",
    Capacity: "The model is too busy; try again later.",
    Outage: "The model cannot be reached; try again later.",
    TimedOut: "The model took too long.",
    Uncertain: "The model's answer was lost.",
}


class Attempts:
    """How this worker carries out attempts."""

    def __init__(self, queue: Queue, pictures: Pictures, outputs: Outputs) -> None:
        self._queue = queue
        self._pictures = pictures
        self._outputs = outputs
        self._log = logger("generation.attempts")

    async def carry_out(self, job: ClaimedJob, deadlines: Deadlines) -> None:
        """Makes what the job asks for and completes it, or fails it.

        Raises `LeaseFenced` if the job is another's by now, and `Unavailable` if the queue could
        not be told in time.
        """
        try:
            outputs = await self._made(job, deadlines)
        except LeaseFenced:
            raise
        except ImageFailure as failure:
            self._log.info("provider failed", job_id=job.job_id, why=repr(failure))
            await self.fail(job, _SENTENCES.get(type(failure), UNEXPLAINED), deadlines)
        except (Failure, grpc.aio.AioRpcError) as failure:
            self._log.warning("not kept", job_id=job.job_id, why=str(failure))
            await self.fail(job, NOT_KEPT, deadlines)
        else:
            await answered(lambda: self._queue.complete(job, outputs), until=deadlines.job)

    async def end(self, job: ClaimedJob, *, is_unwanted: bool) -> None:
        """Puts away what is known of an attempt that ended.

        What nobody wants any more is cancelled at its providers.
        """
        if is_unwanted:
            await self._pictures.withdraw(job)
        self._pictures.forget(job)

    async def fail(self, job: ClaimedJob, error: str, deadlines: Deadlines) -> None:
        """Ends the attempt with an error."""
        await answered(lambda: self._queue.fail(job, error), until=deadlines.job)

    async def _made(self, job: ClaimedJob, deadlines: Deadlines) -> list[Output]:
        params = image_params(json.loads(job.params))
        made = []
        for number in range(1, params.count + 1):
            made.append(await self._pictures.picture(job, params, number, deadlines))
            progress = GENERATED_PROGRESS * number // params.count
            phase = Phase.GENERATING if number < params.count else Phase.PROCESSING
            await self._report(job, phase, progress)
        outputs = []
        for number, picture in enumerate(made, 1):
            keep = partial(self._outputs.keep_image, job, number, params.label, picture)
            outputs.append(await answered(keep, until=deadlines.job))
        return outputs

    async def _report(self, job: ClaimedJob, phase: Phase, progress: int) -> None:
        """Reports a phase; one that got no answer once more, and no other (seed 004)."""
        try:
            await self._queue.update_phase(job, phase, progress)
        except Unavailable:
            await self._queue.update_phase(job, phase, progress)
