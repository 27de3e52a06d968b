"""Does one claimed task: asks the model, stores its text as it comes, keeps the lease."""

import asyncio
from contextlib import aclosing

from providers.text import ModelRefused, ModelUnavailable, TextModel
from servicekit.errors import Failure, Unavailable
from services.tasks.domain.failures import LeaseLost, TextTooLong, TimedOut, UnknownModel
from services.tasks.domain.tasks import failed
from services.tasks.models import TextModels
from services.tasks.patience import patiently
from services.tasks.settings import WorkerSettings
from services.tasks.transcript import Transcript
from services.tasks.work_store import Claim, WorkStore

# How soon a renewal that was not answered is tried again.
RETRY_SECONDS = 1.0


class Execution:
    """One attempt at one task. `claimed_at` is when the claim was sent, by the loop's clock."""

    def __init__(
        self,
        store: WorkStore,
        models: TextModels,
        settings: WorkerSettings,
        claim: Claim,
        claimed_at: float,
    ) -> None:
        self._store = store
        self._models = models
        self._settings = settings
        self._lease = settings.terms().lease
        self._claim = claim
        self._claimed_at = claimed_at

    async def run(self) -> Failure | None:
        """Does the task to its end, which is stored, and answers why it failed, if it did.

        Raises `LeaseLost`, within an exception group.
        """
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._keep_lease())
            ending = await self._work()
            keeping.cancel()
        return ending

    async def _work(self) -> Failure | None:
        model = self._models.get(self._claim.model)
        ending: Failure | None
        if model is None:
            ending = UnknownModel(self._claim.model)
        else:
            await patiently(lambda: self._store.call_model(self._claim))
            ending = await self._write(model)
        if ending is None:
            await patiently(lambda: self._store.succeed(self._claim))
        else:
            last = failed(ending)
            await patiently(lambda: self._store.fail(self._claim, last))
        return ending

    async def _write(self, model: TextModel) -> Failure | None:
        transcript = Transcript(
            self._store,
            self._claim,
            timeout_seconds=self._settings.timeout_seconds,
            flush_seconds=self._settings.flush_seconds,
        )
        try:
            async with transcript.stored():
                ending = await self._listen(model, transcript)
        except TextTooLong as failure:
            return failure
        return ending

    async def _listen(self, model: TextModel, transcript: Transcript) -> Failure | None:
        claim, seconds = self._claim, self._settings.timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds) as limit,
                aclosing(model.write(claim.prompt, model=claim.model)) as pieces,
            ):
                async for piece in pieces:
                    transcript.add(piece)
        except TimeoutError:
            if not limit.expired():
                raise
            return TimedOut(seconds)
        except (ModelRefused, ModelUnavailable, TextTooLong) as failure:
            return failure
        return None

    async def _keep_lease(self) -> None:
        """Renews the lease until cancelled. Raises `LeaseLost` once it cannot be relied on.

        A renewal that is not answered is tried again while the lease lasts by our own clock; the
        database's decides what is written.
        """
        loop = asyncio.get_running_loop()
        lost_at = self._claimed_at + self._settings.lease_seconds
        pause = self._settings.renew_seconds
        while True:
            await asyncio.sleep(pause)
            asked_at = loop.time()
            try:
                async with asyncio.timeout_at(lost_at):
                    await self._store.renew(self._claim, self._lease)
            except TimeoutError:
                raise LeaseLost from None
            except Unavailable:
                pause = min(RETRY_SECONDS, self._settings.renew_seconds)
            else:
                pause = self._settings.renew_seconds
                lost_at = asked_at + self._settings.lease_seconds
