"""The controller process: has as many workers run as the queue needs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
from gesso.generation.v1 import generation_pb2
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub

from servicekit import client
from servicekit.background import background
from servicekit.client import Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from servicekit.telemetry import Metrics, logger, metrics_served
from services.generation.domain.scaling import Limits, QueueStats, decided
from services.generation.instances import Instances, Supervised, Units
from services.generation.settings import ControllerSettings

STATS_SECONDS = 5.0


class Controller:
    """Looks at the queue, decides, and has instances started and stopped."""

    def __init__(
        self,
        stats: Callable[[], Awaitable[QueueStats]],
        instances: Instances,
        limits: Limits,
    ) -> None:
        self._stats = stats
        self._instances = instances
        self._limits = limits
        self._idle_rounds = 0
        self._log = logger("generation.controller")

    async def look(self) -> None:
        """One round. While the queue or the instances cannot be seen, nothing is changed."""
        try:
            stats = await self._stats()
            active = await self._instances.active()
        except (Failure, grpc.aio.AioRpcError) as error:
            # Who cannot look does not know that nothing is to be done.
            self._idle_rounds = 0
            self._log.warning("nothing is decided", why=str(error))
            return
        decision = decided(stats, active, self._idle_rounds, self._limits)
        self._idle_rounds = decision.idle_rounds
        for number in decision.start:
            await self._have("start", self._instances.start, number, stats)
        if decision.stop is not None:
            await self._have("stop", self._instances.stop, decision.stop, stats)

    async def look_forever(self, pause_seconds: float) -> None:
        """Rounds, one after another."""
        while True:
            await self.look()
            await asyncio.sleep(pause_seconds)

    async def _have(
        self, what: str, do: Callable[[int], Awaitable[None]], number: int, stats: QueueStats
    ) -> None:
        try:
            await do(number)
        except Failure as failure:
            # The next round finds it as it is.
            self._log.warning(f"no {what}", number=number, why=failure.detail)
            return
        self._log.info(what, number=number, unfinished=stats.unfinished)


@asynccontextmanager
async def running(settings: ControllerSettings) -> AsyncIterator[None]:
    """Controls inside the block. The instances stay as they are when it is left."""
    limits = settings.limits()
    async with client.connected(
        settings.generation_address, caller="generation-controller", tokens=settings.tokens()
    ) as generation:
        controller = Controller(_stats_of(generation), _instances(settings), limits)
        with metrics_served(Metrics(), settings.metrics_listen):
            async with background(controller.look_forever(settings.poll_interval_ms / 1000)):
                yield


def _instances(settings: ControllerSettings) -> Instances:
    limit, dry_run = settings.max_workers, settings.dry_run
    if settings.supervisor is not None:
        return Supervised(settings.supervisor, limit=limit, dry_run=dry_run)
    return Units(settings.service_template, limit=limit, dry_run=dry_run)


def _stats_of(generation: Client) -> Callable[[], Awaitable[QueueStats]]:
    ask = GenerationServiceStub(generation.channel).GetQueueStats

    async def stats() -> QueueStats:
        request = generation_pb2.GetQueueStatsRequest()
        told = await generation.call(ask, request, Behalf(), seconds=STATS_SECONDS)
        return QueueStats(
            claimable_pending=told.claimable_pending,
            running_active=told.running_active,
            expired_running=told.expired_running,
        )

    return stats
