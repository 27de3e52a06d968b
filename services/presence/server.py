"""Puts the presence service together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import add_PresenceServiceServicer_to_server

from servicekit import server
from servicekit.background import background
from servicekit.telemetry import Metrics
from services.presence.rpc import PresenceRpc
from services.presence.service import PresenceService
from services.presence.settings import Settings

_PRESENCE = presence_pb2.DESCRIPTOR.services_by_name["PresenceService"].full_name


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[int]:
    """Serves presence inside the block, and yields the port."""
    service = PresenceService(tick_seconds=settings.tick_seconds)
    rpc = PresenceRpc(service)
    draining = asyncio.Event()
    async with (
        background(service.beat(settings.heartbeat_seconds), service.end_when(draining)),
        server.serving(
            settings,
            service="presence",
            offers={_PRESENCE: lambda grpc: add_PresenceServiceServicer_to_server(rpc, grpc)},
            check=_always_well,
            draining=draining,
            metrics=Metrics(),
            # A stream that ended by age would give every window another number.
            ageing=False,
        ) as port,
    ):
        yield port


async def _always_well() -> None:
    """There is nothing that presence needs."""
