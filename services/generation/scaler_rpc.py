"""Speaks KEDA's external scaler protocol: how many workers the queue needs."""

import asyncio
from collections.abc import AsyncIterator

from externalscaler import externalscaler_pb2
from externalscaler.externalscaler_pb2_grpc import ExternalScalerServicer

from servicekit.errors import Invalid, Unavailable
from servicekit.identity import Context
from services.generation.settings import Settings
from services.generation.stats import Stats
from services.generation.wakeups import Wakeups

METRIC = "unfinished-generation-jobs"
TARGET = "targetJobsPerWorker"
MAX_TARGET = 1_000
# What nobody told of, a lease that is over, is found by looking.
LOOK_SECONDS = 1.0


class ScalerRpc(ExternalScalerServicer):
    """The queue as something that KEDA scales workers by."""

    def __init__(
        self,
        stats: Stats,
        wakeups: Wakeups,
        settings: Settings,
        *,
        draining: asyncio.Event,
    ) -> None:
        self._stats = stats
        self._wakeups = wakeups
        self._jobs_per_worker = settings.controller_target_jobs_per_worker
        self._draining = draining

    async def IsActive(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> externalscaler_pb2.IsActiveResponse:
        """See externalscaler.proto."""
        self._target(request)
        stats = await self._stats.recent()
        return externalscaler_pb2.IsActiveResponse(result=stats.unfinished > 0)

    async def StreamIsActive(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> AsyncIterator[externalscaler_pb2.IsActiveResponse]:
        """See externalscaler.proto."""
        self._target(request)
        arrivals = self._wakeups.arrivals
        told: bool | None = None
        while not self._draining.is_set():
            calls = arrivals.calls
            active = await self._is_active()
            if active is not None and active is not told:
                yield externalscaler_pb2.IsActiveResponse(result=active)
                told = active
            if active:
                # Each job that comes would have us look anew, and tell nothing new.
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await arrivals.wait(LOOK_SECONDS, since=calls)

    async def GetMetricSpec(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> externalscaler_pb2.GetMetricSpecResponse:
        """See externalscaler.proto."""
        target = self._target(request)
        spec = externalscaler_pb2.MetricSpec(
            metricName=METRIC, targetSize=target, targetSizeFloat=target
        )
        return externalscaler_pb2.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(
        self, request: externalscaler_pb2.GetMetricsRequest, context: Context
    ) -> externalscaler_pb2.GetMetricsResponse:
        """See externalscaler.proto."""
        self._target(request.scaledObjectRef)
        if request.metricName != METRIC:
            raise Invalid(f"The only metric is {METRIC}.", path="metricName")
        unfinished = (await self._stats.recent()).unfinished
        value = externalscaler_pb2.MetricValue(
            metricName=METRIC, metricValue=unfinished, metricValueFloat=unfinished
        )
        return externalscaler_pb2.GetMetricsResponse(metricValues=[value])

    async def _is_active(self) -> bool | None:
        """Whether a job needs a worker now, None while nobody can tell."""
        try:
            return (await self._stats.now()).unfinished > 0
        except Unavailable:
            return None

    def _target(self, scaled: externalscaler_pb2.ScaledObjectRef) -> int:
        """How many jobs one worker is meant to have, as the trigger says. Raises `Invalid`."""
        said = scaled.scalerMetadata.get(TARGET)
        if said is None:
            return self._jobs_per_worker
        if not (said.isascii() and said.isdecimal() and len(said) <= len(str(MAX_TARGET))):
            raise Invalid(f"{TARGET} is a whole number of 1 to {MAX_TARGET}.", path=TARGET)
        target = int(said)
        if not 1 <= target <= MAX_TARGET:
            raise Invalid(f"{TARGET} is a whole number of 1 to {MAX_TARGET}.", path=TARGET)
        return target
