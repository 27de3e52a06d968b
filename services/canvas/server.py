"""Puts the canvas service together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from gesso.assets.v1 import assets_pb2
from gesso.assets.v1.assets_pb2_grpc import add_AssetsServiceServicer_to_server
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import add_CanvasServiceServicer_to_server

from servicekit import client, postgres, server
from servicekit.objects import Objects
from servicekit.telemetry import Metrics
from services.canvas.assets import AssetsService
from services.canvas.assets_rpc import AssetsRpc
from services.canvas.assets_store import AssetsStore
from services.canvas.commits import committing
from services.canvas.feed import Feed, feeding
from services.canvas.rpc import CanvasRpc
from services.canvas.service import CanvasService
from services.canvas.settings import Settings
from services.canvas.store import CanvasStore
from services.canvas.sweeper import sweeping

_CANVAS = canvas_pb2.DESCRIPTOR.services_by_name["CanvasService"].full_name
_ASSETS = assets_pb2.DESCRIPTOR.services_by_name["AssetsService"].full_name


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[int]:
    """Serves canvases, resources and assets inside the block, and yields the port."""
    feed, metrics, draining = Feed(), Metrics(), asyncio.Event()
    objects = Objects.at(settings.objects.objects_url)
    async with (
        postgres.connected(settings.database, application="canvas") as database,
        client.connected(
            settings.presence_address, caller="canvas", tokens=settings.tokens()
        ) as presence,
        feeding(feed, presence, metrics),
        sweeping(
            CanvasStore(database),
            every_seconds=settings.sweep_seconds,
            receipts=timedelta(days=settings.receipt_days),
            changes=timedelta(hours=settings.change_hours),
        ),
        committing(
            CanvasStore(database),
            feed,
            settings.limits(),
            # The others are for reads.
            lines=settings.database.database_connections // 2,
        ) as commits,
    ):
        canvases = CanvasRpc(
            CanvasService(CanvasStore(database), commits, feed),
            server.endings("canvas", metrics),
            draining,
        )
        assets = AssetsRpc(AssetsService(AssetsStore(database), objects, settings.limits()))
        async with server.serving(
            settings,
            service="canvas",
            offers={
                _CANVAS: lambda grpc: add_CanvasServiceServicer_to_server(canvases, grpc),
                _ASSETS: lambda grpc: add_AssetsServiceServicer_to_server(assets, grpc),
            },
            check=database.check,
            draining=draining,
            metrics=metrics,
        ) as port:
            yield port
