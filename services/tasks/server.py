"""Puts the tasks service together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gesso.tasks.v1 import tasks_pb2
from gesso.tasks.v1.tasks_pb2_grpc import add_TasksServiceServicer_to_server

from servicekit import postgres, server
from servicekit.telemetry import Metrics
from servicekit.watches import Watches, watching
from services.tasks.feed import TextFeed, feeding
from services.tasks.models import text_models
from services.tasks.rpc import TasksRpc
from services.tasks.service import TasksService
from services.tasks.settings import Settings
from services.tasks.store import CHANGED_CHANNEL, TasksStore

_TASKS = tasks_pb2.DESCRIPTOR.services_by_name["TasksService"].full_name


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[int]:
    """Serves tasks and their text inside the block, and yields the port."""
    draining = asyncio.Event()
    async with postgres.connected(settings.database, application="tasks") as database:
        store = TasksStore(database)
        feed = TextFeed(store)
        service = TasksService(
            store,
            feed,
            text_models(),
            waiting_per_account=settings.waiting_per_account,
            alive_seconds=settings.alive_seconds,
        )
        watches = Watches(store, look_seconds=settings.poll_seconds)
        rpc = TasksRpc(service, watches)
        async with (
            feeding(
                feed,
                database_url=settings.database.database_url,
                draining=draining,
                poll_seconds=settings.poll_seconds,
            ),
            watching(
                watches,
                database_url=settings.database.database_url,
                channel=CHANGED_CHANNEL,
                draining=draining,
            ),
            server.serving(
                settings,
                service="tasks",
                offers={_TASKS: lambda grpc: add_TasksServiceServicer_to_server(rpc, grpc)},
                check=database.check,
                draining=draining,
                metrics=Metrics(),
            ) as port,
        ):
            yield port
