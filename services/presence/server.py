"""Puts the presence service together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import add_PresenceServiceServicer_to_server

from servicekit import server, valkey
from servicekit.background import background
from servicekit.telemetry import Metrics
from services.presence.rpc import PresenceRpc
from services.presence.service import PresenceService
from services.presence.settings import Settings

_PRESENCE = presence_pb2.DESCRIPTOR.services_by_name["PresenceService"].full_name


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[int]:
    """Serves presence inside the block, and yields the port."""
    draining = asyncio.Event()
    async with AsyncExitStack() as stack:
        shared = None
        if settings.valkey.redis_url is not None:
            shared = await stack.enter_async_context(valkey.connected(settings.valkey.redis_url))
        service = PresenceService(tick_seconds=settings.tick_seconds, valkey=shared)
        await stack.enter_async_context(
            background(
                service.beat(settings.heartbeat_seconds),
                service.be_one_of_several(),
                service.end_when(draining),
            )
        )
        rpc = PresenceRpc(service)
        yield await stack.enter_async_context(
            server.serving(
                settings,
                service="presence",
                offers={_PRESENCE: lambda grpc: add_PresenceServiceServicer_to_server(rpc, grpc)},
                check=_always_well,
                draining=draining,
                metrics=Metrics(),
                # Each stream that ended by age would have all its windows join again.
                ageing=False,
            )
        )


async def _always_well() -> None:
    """There is nothing that presence needs: without Valkey its rooms are those here."""
