"""Pictures that models make for jobs: each asked for once, whoever goes on with the job (GN30)."""

import asyncio
import hashlib
from collections.abc import Mapping
from functools import partial

import grpc

from providers.image import (
    Capacity,
    ImageModel,
    ImageRequest,
    Outage,
    Refused,
    TimedOut,
    Uncertain,
)
from servicekit.errors import Failure
from servicekit.telemetry import logger
from services.generation.domain.budget import Deadlines, fits_another_try
from services.generation.domain.calls import Outcome
from services.generation.domain.jobs import ClaimedJob
from services.generation.domain.params import ImageParams
from services.generation.journal import Journal
from services.generation.patience import answered

FIRST_PAUSE_SECONDS = 0.5
WITHDRAW_SECONDS = 10.0

# The model did nothing, unless it had accepted the request before.
_DID_NOTHING = (Capacity, Outage)


class Pictures:
    """The models that are asked here, by name."""

    def __init__(self, journal: Journal, models: Mapping[str, ImageModel]) -> None:
        self._journal = journal
        self._models = models
        # What providers call the requests of jobs that are worked on, by job and number.
        self._accepted: dict[tuple[str, int], tuple[ImageModel, str]] = {}
        self._log = logger("generation.pictures")

    async def picture(
        self, job: ClaimedJob, params: ImageParams, number: int, deadlines: Deadlines
    ) -> bytes:
        """Picture `number` of a job, tried again while the model did nothing and another try fits.

        Raises an `ImageFailure`, or `LeaseFenced`.
        """
        model = self._models.get(params.model)
        if model is None:
            raise Outage(f"there is no model {params.model} here")
        request = image_request(job, params, number)
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = loop.time()
            try:
                return await self._asked(job, number, model, params.model, request, deadlines)
            except (Capacity, Outage) as failure:
                asked = failure.retry_after_seconds if isinstance(failure, Capacity) else None
                wait = pause if asked is None else asked
                now = loop.time()
                if not fits_another_try(now, wait, now - started, deadlines.provider):
                    raise
            await asyncio.sleep(wait)
            pause = 2 * pause

    async def withdraw(self, job: ClaimedJob) -> None:
        """Asks providers to cancel what they were asked for a job that nobody wants any more."""
        for (job_id, number), (model, request_id) in list(self._accepted.items()):
            if job_id == job.job_id:
                # Whatever is wrong with one must not stop the others, or the end of the job.
                cancelling = asyncio.wait_for(model.cancel(request_id), WITHDRAW_SECONDS)
                (answer,) = await asyncio.gather(cancelling, return_exceptions=True)
                if isinstance(answer, BaseException):
                    self._log.warning("not cancelled", job_id=job_id, why=repr(answer))
                elif answer:
                    await self._settle(job, number, Outcome.CANCELLED, "")

    def forget(self, job: ClaimedJob) -> None:
        """The job is not worked on here any more."""
        for known in [known for known in self._accepted if known[0] == job.job_id]:
            del self._accepted[known]

    async def _asked(
        self,
        job: ClaimedJob,
        number: int,
        model: ImageModel,
        name: str,
        request: ImageRequest,
        deadlines: Deadlines,
    ) -> bytes:
        """What the model makes of a request, or made of it before."""
        known = self._accepted.get((job.job_id, number))
        request_id, is_new = (known[1], False) if known else (None, False)
        if request_id is None:
            begin = partial(self._journal.begin, job, number, name)
            begun = await answered(begin, until=deadlines.provider)
            request_id, is_new = begun.request_id, begun.is_new
        try:
            async with asyncio.timeout_at(deadlines.provider):
                if is_new:
                    accepted = partial(self._accept, job, number, model, deadlines)
                    picture = await model.generate(request, accepted)
                elif request_id is not None:
                    self._accepted[job.job_id, number] = (model, request_id)
                    picture = await model.resume(request, request_id)
                else:
                    raise Uncertain("asked for by an attempt that was lost")
        except TimeoutError:
            raise TimedOut("past the provider's deadline") from None
        except _DID_NOTHING as failure:
            # Of a request that was accepted they say nothing: it is asked after once more.
            is_accepted = (job.job_id, number) in self._accepted
            if not is_accepted and not await self._settle(
                job, number, Outcome.FAILED, failure.detail
            ):
                # What is not known to have failed is never asked for again.
                raise Uncertain(failure.detail) from None
            raise
        except Refused as failure:
            self._accepted.pop((job.job_id, number), None)
            await self._settle(job, number, Outcome.FAILED, failure.detail)
            raise
        self._accepted.pop((job.job_id, number), None)
        await self._settle(job, number, Outcome.SUCCEEDED, "")
        return picture

    async def _accept(
        self,
        job: ClaimedJob,
        number: int,
        model: ImageModel,
        deadlines: Deadlines,
        request_id: str,
    ) -> None:
        """Says what the provider calls a request; it is worked on there whether it is heard."""
        self._accepted[job.job_id, number] = (model, request_id)
        telling = partial(self._journal.accept, job, number, request_id)
        try:
            await answered(telling, until=deadlines.provider)
        except (Failure, grpc.aio.AioRpcError) as failure:
            self._log.warning("not noted", job_id=job.job_id, number=number, why=str(failure))

    async def _settle(self, job: ClaimedJob, number: int, outcome: Outcome, detail: str) -> bool:
        """Says what became of a call, and whether that was heard; else it stays uncertain."""
        try:
            await self._journal.settle(job, number, outcome, detail)
        except (Failure, grpc.aio.AioRpcError) as failure:
            self._log.warning("not settled", job_id=job.job_id, number=number, why=str(failure))
            return False
        return True


def image_request(job: ClaimedJob, params: ImageParams, number: int) -> ImageRequest:
    """What a model is asked for picture `number` of a job; the same in every attempt."""
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
