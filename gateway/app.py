"""Puts the gateway together."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from importlib.metadata import version

import uvicorn
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send
from valkey.asyncio import Valkey

from gateway import clients, openapi
from gateway.accounts import Accounts
from gateway.accounts_store import AccountsStore
from gateway.auth import Doorkeeper
from gateway.clients import Clients
from gateway.dispatch import Dispatcher
from gateway.endpoints import endpoints_of
from gateway.frames import MAX_FRAME_BYTES
from gateway.grants import Grants, granting
from gateway.heads import BoundedHeads
from gateway.limits import TryLimits
from gateway.metrics import HttpMetrics
from gateway.mutations import Mutations, mutating
from gateway.pages import Pages
from gateway.presence import linked
from gateway.readiness import Check
from gateway.routes.auth import AuthRoutes
from gateway.routes.canvases import CanvasRoutes
from gateway.routes.events import EventsRoutes
from gateway.routes.generations import GenerationRoutes
from gateway.routes.realtime import RealtimeRoute
from gateway.routes.resources import ResourceRoutes
from gateway.routes.suite import SuiteRoutes
from gateway.routes.tasks import TaskRoutes
from gateway.settings import Settings
from gateway.sockets import Socket
from gateway.texts import Texts
from gateway.watching import Watchings, watching
from servicekit import postgres, valkey
from servicekit.background import background
from servicekit.objects import Objects
from servicekit.postgres import Database
from servicekit.settings import CannotListen, host_and_port
from servicekit.telemetry import Metrics, metrics_served

# Without the gateway's own database nobody can be told from anybody.
NEEDED = frozenset({"postgres"})


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[int]:
    """Serves HTTP, SSE and WebSocket inside the block, and yields the port.

    Leaving the block has streams end with a hint to come back, and waits for requests in flight.
    """
    draining = asyncio.Event()
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            postgres.connected(settings.database, application="gateway")
        )
        services = await stack.enter_async_context(clients.connected(settings))
        store = AccountsStore(database)
        grants = Grants(store, services.generation, settings.signup_grant_credits)
        await stack.enter_async_context(granting(grants))
        counting = None
        if settings.valkey.redis_url is not None:
            counting = await stack.enter_async_context(valkey.connected(settings.valkey.redis_url))
        objects = Objects.at(settings.objects.objects_url)
        accounts = Accounts(store)
        await stack.enter_async_context(background(accounts.forget_ended_sessions()))
        doorkeeper = Doorkeeper(accounts, settings.origins())
        link = await stack.enter_async_context(linked(services.presence))
        mutations = await stack.enter_async_context(
            mutating(services.canvas, streams=settings.canvas_streams)
        )
        watchings = await stack.enter_async_context(watching(services.generation, services.tasks))
        realtime = RealtimeRoute(
            doorkeeper,
            services.canvas,
            link,
            watchings,
            draining,
            recheck_seconds=settings.realtime_recheck_seconds,
        )
        await stack.enter_async_context(background(*realtime.upkeep()))
        app = _app(
            settings,
            accounts=accounts,
            doorkeeper=doorkeeper,
            realtime=realtime,
            mutations=mutations,
            watchings=watchings,
            grants=grants,
            services=services,
            objects=objects,
            checks=_checks(
                database,
                services,
                objects,
                counting,
                needs_workers=settings.inline_seconds() is None,
            ),
            metrics=HttpMetrics(metrics.registry),
            draining=draining,
        )
        stack.enter_context(metrics_served(metrics, settings.metrics_listen))
        yield await stack.enter_async_context(_listening(app, settings, draining, realtime))


def _app(
    settings: Settings,
    *,
    accounts: Accounts,
    doorkeeper: Doorkeeper,
    realtime: RealtimeRoute,
    mutations: Mutations,
    watchings: Watchings,
    grants: Grants,
    services: Clients,
    objects: Objects,
    checks: dict[str, Check],
    metrics: HttpMetrics,
    draining: asyncio.Event,
) -> ASGIApp:
    tries = TryLimits(settings.valkey.redis_url, settings.tries_per_minute)
    texts = Texts(services.tasks, draining)
    served = [
        *endpoints_of(AuthRoutes(accounts, grants, tries, secure=settings.secure())),
        *endpoints_of(CanvasRoutes(services.canvas, mutations)),
        *endpoints_of(ResourceRoutes(services.canvas, objects)),
        *endpoints_of(
            GenerationRoutes(
                services.generation, services.canvas, inline_seconds=settings.inline_seconds()
            )
        ),
        *endpoints_of(TaskRoutes(services.tasks, texts)),
        *endpoints_of(
            EventsRoutes(
                doorkeeper,
                watchings,
                texts,
                draining,
                recheck_seconds=settings.realtime_recheck_seconds,
            )
        ),
    ]
    pages = Pages(openapi.document(served, version=version("gesso")))
    served += endpoints_of(SuiteRoutes(pages, checks, needed=NEEDED))
    dispatcher = Dispatcher(doorkeeper, metrics, secure=settings.secure())
    # Not the application of Starlette: the dispatcher answers whatever fails.
    others = Router(routes=dispatcher.routes(served))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Windows stay for hours: each would hold the calls of the router.
        await (realtime if scope["type"] == "websocket" else others)(scope, receive, send)

    return app


def _checks(
    database: Database,
    services: Clients,
    objects: Objects,
    counting: Valkey | None,
    *,
    needs_workers: bool,
) -> dict[str, Check]:
    generation = clients.check_generation if needs_workers else clients.check
    checks: dict[str, Check] = {
        "postgres": database.check,
        "objects": objects.check,
        "canvas": lambda: clients.check(services.canvas),
        "tasks": lambda: clients.check(services.tasks),
        "generation": lambda: generation(services.generation),
        "presence": lambda: clients.check(services.presence),
    }
    if counting is not None:
        checks["valkey"] = lambda: valkey.check(counting)
    return checks


class _Server(uvicorn.Server):
    """A server that leaves signals to the process that it is part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _listening(
    app: ASGIApp, settings: Settings, draining: asyncio.Event, realtime: RealtimeRoute
) -> AsyncIterator[int]:
    host, port = host_and_port(settings.listen)
    try:
        bound = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise CannotListen(settings.listen, error.strerror or str(error)) from None
    config = uvicorn.Config(
        app,
        loop="none",
        http=BoundedHeads,
        ws=Socket,
        # Each window would hold a compressor; what it hears is short and made once for all.
        ws_per_message_deflate=False,
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=settings.realtime_ping_seconds,
        ws_ping_timeout=settings.realtime_ping_seconds,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies or None,
        timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.serve(sockets=[bound]))
        try:
            yield int(bound.getsockname()[1])
        finally:
            draining.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(settings.drain_seconds):
                    await realtime.drained()
            server.should_exit = True
            await running
