"""Puts the generation service together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta

from externalscaler.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from gesso.generation.v1 import generation_pb2, provider_calls_pb2
from gesso.generation.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from gesso.generation.v1.provider_calls_pb2_grpc import add_ProviderCallServiceServicer_to_server
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import add_WalletServiceServicer_to_server

from servicekit import client, postgres, server
from servicekit.background import background
from servicekit.telemetry import Metrics
from servicekit.watches import Watches, watching
from services.generation.calls import ProviderCalls
from services.generation.calls_rpc import CallsRpc
from services.generation.calls_store import CallsStore
from services.generation.canvases import Canvases
from services.generation.claims import Claims
from services.generation.deliveries_store import DeliveriesStore
from services.generation.delivery import Deliveries, Pace, delivering
from services.generation.domain.prices import CHANNELS
from services.generation.gauges import Gauges
from services.generation.leases_store import LeasesStore
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
async def serving(settings: Settings) -> AsyncIterator[int]:
    """Serves the queue and the wallets inside the block, and yields the port."""
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
        delivering(Deliveries(DeliveriesStore(database), Canvases(canvas), wakeups, pace)),
    ):
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
        generation = GenerationRpc(service, claims, watches, workers, stats)
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
            ) as port,
        ):
            yield port


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
