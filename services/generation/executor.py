"""Carries out what a job asks for: the provider makes it, the store keeps it."""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import grpc

from providers.image import Capacity, ImageFailure, Outage, Refused, TimedOut, Uncertain
from servicekit.errors import Failure
from servicekit.telemetry import logger
from services.generation.domain.budget import Deadlines
from services.generation.domain.failures import LeaseFenced
from services.generation.domain.jobs import UNEXPLAINED, ClaimedJob, Output, Phase
from services.generation.domain.params import image_params
from services.generation.outputs import Outputs
from services.generation.patience import answered
from services.generation.pictures import Pictures

GENERATED_PROGRESS = 80

NOT_KEPT = "The result could not be stored."
_SENTENCES: dict[type[ImageFailure], str] = {
    Refused: "The model refused this prompt.",
    Capacity: "The model is too busy; try again later.",
    Outage: "The model cannot be reached; try again later.",
    TimedOut: "The model took too long.",
    Uncertain: "The model's answer was lost.",
}

# Told what is done now, and how far it is, 0 to 100.
Report = Callable[[Phase, int], Awaitable[None]]


class NotMade(Exception):  # noqa: N818 - facts are named without a suffix
    """A job that has no result; `sentence` says why to people."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class Executor:
    """The models and the store that jobs are carried out with."""

    def __init__(self, pictures: Pictures, outputs: Outputs) -> None:
        self._pictures = pictures
        self._outputs = outputs
        self._log = logger("generation.executor")

    async def outputs(
        self,
        job: ClaimedJob,
        deadlines: Deadlines,
        report: Report,
        kept: Mapping[int, Output] | None = None,
    ) -> list[Output]:
        """What the job asks for, the main output first; what is `kept`, by its number, stays.

        Raises `NotMade`, or `LeaseFenced` if the job is another's by now.
        """
        try:
            return await self._made(job, deadlines, report, kept or {})
        except LeaseFenced:
            raise
        except ImageFailure as failure:
            self._log.info("provider failed", job_id=job.job_id, why=repr(failure))
            raise NotMade(_SENTENCES.get(type(failure), UNEXPLAINED)) from None
        except (Failure, grpc.aio.AioRpcError) as failure:
            self._log.warning("not kept", job_id=job.job_id, why=str(failure))
            raise NotMade(NOT_KEPT) from None

    async def kept(self, job: ClaimedJob) -> dict[int, Output]:
        """What was kept of a job before, by its number."""
        found = {}
        for number in range(1, image_params(json.loads(job.params)).count + 1):
            output = await self._outputs.kept_image(job, number)
            if output is not None:
                found[number] = output
        return found

    async def end(self, job: ClaimedJob, *, is_unwanted: bool) -> None:
        """Puts away what is known of a job that is not worked on any more.

        What nobody wants any more is cancelled at its providers.
        """
        if is_unwanted:
            await self._pictures.withdraw(job)
        self._pictures.forget(job)

    async def _made(
        self, job: ClaimedJob, deadlines: Deadlines, report: Report, kept: Mapping[int, Output]
    ) -> list[Output]:
        params = image_params(json.loads(job.params))
        numbers = range(1, params.count + 1)
        made = {}
        for number in numbers:
            if number not in kept:
                made[number] = await self._pictures.picture(job, params, number, deadlines)
            progress = GENERATED_PROGRESS * number // params.count
            await report(Phase.GENERATING if number < params.count else Phase.PROCESSING, progress)
        outputs = []
        for number in numbers:
            if number in kept:
                outputs.append(kept[number])
                continue
            keep = partial(self._outputs.keep_image, job, number, params.label, made[number])
            outputs.append(await answered(keep, until=deadlines.job))
        return outputs
