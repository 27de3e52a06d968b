"""One attempt at a job: the provider makes it, the store keeps it, the queue is told."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from functools import partial

import grpc

from providers.image import (
    Capacity,
    ImageFailure,
    ImageModel,
    ImageRequest,
    Outage,
    Refused,
    TimedOut,
)
from servicekit.errors import Failure, Unavailable
from servicekit.telemetry import logger
from services.generation.domain.budget import Deadlines, fits_another_try
from services.generation.domain.failures import LeaseFenced
from services.generation.domain.jobs import UNEXPLAINED, ClaimedJob, Output, Phase
from services.generation.domain.params import ImageParams, image_params
from services.generation.outputs import Outputs
from services.generation.patience import answered
from services.generation.queue import Queue

FIRST_PAUSE_SECONDS = 0.5
GENERATED_PROGRESS = 80

NOT_KEPT = "The result could not be stored."
_SENTENCES: dict[type[ImageFailure], str] = {
    Refused: "The model refused this prompt.",
    Capacity: "The model is too busy; try again later.",
    Outage: "The model cannot be reached; try again later.",
    TimedOut: "The model took too long.",
}


class Attempts:
    """How this worker carries out attempts."""

    def __init__(self, queue: Queue, outputs: Outputs, providers: Mapping[str, ImageModel]) -> None:
        self._queue = queue
        self._outputs = outputs
        self._providers = providers
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

    async def fail(self, job: ClaimedJob, error: str, deadlines: Deadlines) -> None:
        """Ends the attempt with an error."""
        await answered(lambda: self._queue.fail(job, error), until=deadlines.job)

    async def _made(self, job: ClaimedJob, deadlines: Deadlines) -> list[Output]:
        params = image_params(json.loads(job.params))
        provider = self._providers.get(params.model)
        if provider is None:
            raise Outage(f"this worker has no model {params.model}")
        pictures = []
        for number in range(1, params.count + 1):
            request = _image_request(job, params, number)
            pictures.append(await self._generated(provider, request, deadlines.provider))
            progress = GENERATED_PROGRESS * number // params.count
            phase = Phase.GENERATING if number < params.count else Phase.PROCESSING
            await self._report(job, phase, progress)
        outputs = []
        for number, picture in enumerate(pictures, 1):
            keep = partial(self._outputs.keep_image, job, number, params.label, picture)
            outputs.append(await answered(keep, until=deadlines.job))
        return outputs

    async def _generated(
        self, provider: ImageModel, request: ImageRequest, deadline: float
    ) -> bytes:
        """A picture, tried again while the provider did nothing and another try fits."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = loop.time()
            try:
                async with asyncio.timeout_at(deadline):
                    return await provider.generate(request)
            except TimeoutError:
                raise TimedOut("past the provider's deadline") from None
            except (Capacity, Outage) as failure:
                asked = failure.retry_after_seconds if isinstance(failure, Capacity) else None
                wait = pause if asked is None else asked
                now = loop.time()
                if not fits_another_try(now, wait, now - started, deadline):
                    raise
            await asyncio.sleep(wait)
            pause = 2 * pause

    async def _report(self, job: ClaimedJob, phase: Phase, progress: int) -> None:
        """Reports a phase; one that got no answer once more, and no other (seed 004)."""
        try:
            await self._queue.update_phase(job, phase, progress)
        except Unavailable:
            await self._queue.update_phase(job, phase, progress)


def _image_request(job: ClaimedJob, params: ImageParams, number: int) -> ImageRequest:
    width, height = params.pixels
    # Without a seed each job draws anew, but every attempt at it the same.
    seed = params.seed
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(job.job_id.encode()).digest()[:6])
    return ImageRequest(
        request_id=f"{job.job_id}:{number}",
        prompt=params.prompt,
        width=width,
        height=height,
        seed=seed + number - 1,
        transparent=params.transparent,
        subtype=params.subtype,
    )
