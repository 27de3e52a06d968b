"""Puts the generation service together."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta

from externalscaler.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from gesso.generation.v1 import generation_pb2, provider_calls_pb2
from gesso.generation.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from gesso.generation.v1.provider_calls_pb2_grpc import add_ProviderCallServiceServicer_to_server
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import add_WalletServiceServicer_to_server

from providers.image import ImageModel
from servicekit import client, postgres, server
from servicekit.background import background
from servicekit.client import Client
from servicekit.objects import Objects
from servicekit.telemetry import Metrics
from servicekit.watches import Watches, watching
from services.generation.calls import ProviderCalls
from services.generation.calls_rpc import CallsRpc
from services.generation.calls_store import CallsStore
from services.generation.canvases import Canvases
from services.generation.claims import Claims
from services.generation.deliveries_store import DeliveriesStore
from services.generation.delivery import Deliveries, Pace, delivering
from services.generation.domain.params import DEFAULT_MODEL
from services.generation.domain.prices import CHANNELS
from services.generation.executor import Executor
from services.generation.gauges import Gauges
from services.generation.inline import Inline
from services.generation.journal import NoJournal
from services.generation.leases_store import LeasesStore
from services.generation.outputs import Outputs
from services.generation.pictures import Pictures
from services.generation.retention_store import RetentionStore
from services.generation.rpc import GenerationRpc
from services.generation.scaler_rpc import ScalerRpc
from services.generation.service import GenerationService
from services.generation.settings import Settings
from services.generation.stats import Stats
from services.generation.stats_store import StatsStore
from services.generation.store import Channel, QueueStore
from services.generation.summaries_store import SummariesStore
from services.generation.sweeper import Sweeper
from services.generation.turns import Turns
from services.generation.turns_store import TurnsStore
from services.generation.wakeups import CHANGED, Wakeups, waking
from services.generation.wallet import WalletService
from services.generation.wallet_rpc import WalletRpc
from services.generation.wallet_store import WalletStore
from services.generation.workers import Workers
from services.generation.workers_store import WorkersStore

# Looking for changes that nobody told of is so much rarer than looking for work.
LOOK_ROUNDS = 5

_GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
_CALLS = provider_calls_pb2.DESCRIPTOR.services_by_name["ProviderCallService"].full_name
_WALLET = wallet_pb2.DESCRIPTOR.services_by_name["WalletService"].full_name


@asynccontextmanager
async def serving(
    settings: Settings, providers: Mapping[str, ImageModel] | None = None
) -> AsyncIterator[int]:
    """Serves the queue and the wallets inside the block, and yields the port.

    `providers` are the models by name that inline jobs are made with, those that people can choose
    if not given.
    """
    capacities = settings.capacities()
    draining = asyncio.Event()
    wakeups = Wakeups()
    pace = Pace(
        lease_seconds=settings.delivery_lease_seconds,
        pause_seconds=settings.delivery_pause_seconds,
        poll_seconds=settings.poll_seconds,
        drain_seconds=settings.drain_seconds,
    )
    async with (
        postgres.connected(settings.database, application="generation") as database,
        client.connected(
            settings.canvas_address, caller="generation", tokens=settings.tokens()
        ) as canvas,
        waking(wakeups, database, settings.database.database_url),
    ):
        deliveries = Deliveries(DeliveriesStore(database), Canvases(canvas), wakeups, pace)
        store = QueueStore(database)
        summaries = SummariesStore(database)
        turns = Turns(
            TurnsStore(database),
            wakeups,
            limit=settings.running_limit,
            poll_seconds=settings.poll_seconds,
        )
        service = GenerationService(
            store,
            LeasesStore(database),
            summaries,
            wakeups,
            turns,
            backlog_limit=settings.backlog_limit,
            has_limits=bool(capacities),
        )
        inline = None
        if settings.objects_url is not None and settings.generation_mode == "inline":
            executor = _executor(settings.objects_url, canvas, providers)
            budget = settings.worker_long_job_timeout_seconds
            inline = Inline(store, service, executor, deliveries, budget_seconds=budget)
        workers = Workers(WorkersStore(database))
        stats = Stats(StatsStore(database), {name: capacities.get(name) for name in CHANNELS})
        claims = Claims(
            store,
            wakeups,
            turns,
            workers,
            channels=[Channel(name, capacities.get(name)) for name in CHANNELS],
            draining=draining,
            poll_seconds=settings.poll_seconds,
        )
        watches = Watches(summaries, look_seconds=LOOK_ROUNDS * settings.poll_seconds)
        generation = GenerationRpc(inline or service, service, claims, watches, workers, stats)
        metrics = Metrics()
        wallets = WalletStore(database)
        sweeper = Sweeper(
            RetentionStore(database),
            wallets,
            metrics,
            age=timedelta(days=settings.retention_days),
        )
        calls = CallsRpc(ProviderCalls(CallsStore(database)))
        wallet = WalletRpc(WalletService(wallets))
        upkeep = [
            turns.give_forever(),
            turns.look_forever(),
            sweeper.sweep_forever(every_seconds=settings.sweep_seconds),
            workers.write_forever(),
        ]
        if settings.metrics_listen is not None:
            upkeep.append(Gauges(metrics.registry).show_forever(stats))
        async with (
            delivering(deliveries),
            service.settling(),
            claims.taking(),
            background(*upkeep),
            watching(
                watches,
                database_url=settings.database.database_url,
                channel=CHANGED,
                draining=draining,
            ),
            _scaling(settings, ScalerRpc(stats, wakeups, settings, draining=draining), metrics),
            _carrying_out(inline, settings, draining),
            server.serving(
                settings,
                service="generation",
                offers={
                    _GENERATION: lambda grpc: add_GenerationServiceServicer_to_server(
                        generation, grpc
                    ),
                    _CALLS: lambda grpc: add_ProviderCallServiceServicer_to_server(calls, grpc),
                    _WALLET: lambda grpc: add_WalletServiceServicer_to_server(wallet, grpc),
                },
                check=database.check,
                draining=draining,
                metrics=metrics,
                # A call lasts as long as the job that is carried out in it.
                ageing=inline is None,
            ) as port,
        ):
            yield port


def _executor(
    objects_url: str, canvas: Client, providers: Mapping[str, ImageModel] | None
) -> Executor:
    if providers is None:
        # Fonts and codecs are for the process that draws, and most services never do.
        from providers.studio.image import StudioImages  # noqa: PLC0415

        providers = {DEFAULT_MODEL: StudioImages()}
    outputs = Outputs(Objects.at(objects_url), canvas)
    return Executor(Pictures(NoJournal(), providers), outputs)


def _carrying_out(
    inline: Inline | None, settings: Settings, draining: asyncio.Event
) -> AbstractAsyncContextManager[object]:
    """Carries jobs out inside the block, if the service does so itself."""
    if inline is None:
        return nullcontext()
    return inline.working(draining, drain_seconds=settings.drain_seconds)


def _scaling(
    settings: Settings, scaler: ScalerRpc, metrics: Metrics
) -> AbstractAsyncContextManager[object]:
    """Serves the scaler inside the block, if it is to be served."""
    if settings.scaler_listen is None:
        return nullcontext()
    return server.serving_anyone(
        settings.scaler_listen,
        service="generation-scaler",
        register=lambda grpc: add_ExternalScalerServicer_to_server(scaler, grpc),
        drain_seconds=settings.drain_seconds,
        metrics=metrics,
    )
