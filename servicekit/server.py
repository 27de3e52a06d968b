"""Builds the gRPC server of a service: guarded, with health and reflection, drained at the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from servicekit import wire
from servicekit.errors import Failure
from servicekit.interceptors import Endings, Guard
from servicekit.settings import CannotListen, ServerSettings
from servicekit.telemetry import Metrics, logger, metrics_served

CHECK_SECONDS = 1.0
ANYONE_CALLS = 100

_OPTIONS = [
    *wire.OPTIONS,
    ("grpc.so_reuseport", 0),
    # Strictly below the interval at which our clients ping.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
]
# Makes clients look for new instances now and then.
_AGEING = [
    ("grpc.max_connection_age_ms", 600_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
]

Check = Callable[[], Awaitable[None]]
Register = Callable[[grpc.aio.Server], None]


@asynccontextmanager
async def serving(
    settings: ServerSettings,
    *,
    service: str,
    offers: dict[str, Register],
    check: Check,
    draining: asyncio.Event,
    metrics: Metrics,
    ageing: bool = True,
) -> AsyncIterator[int]:
    """Serves inside the block and yields the port.

    `offers` maps the full name of each proto service to what registers it. `check` raises a
    `Failure` while the process cannot work; health says NOT_SERVING then. Connections end after
    ten minutes, unless they are not `ageing`, for streams that stay. Leaving the block says
    NOT_SERVING, sets `draining` so that streams end, and waits for calls in flight.
    """
    log = logger(service)
    guard = Guard(tokens=settings.tokens(), endings=endings(service, metrics))
    options = [*_OPTIONS, *_AGEING] if ageing else _OPTIONS
    server = grpc.aio.server(interceptors=[guard], options=options)
    well = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(well, server)
    for register in offers.values():
        register(server)
    names = [*offers, health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    port = _bound(server, settings.listen)
    with metrics_served(metrics, settings.metrics_listen):
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_watch(well, ["", *offers], check))
            try:
                yield port
            finally:
                watch.cancel()
                await well.enter_graceful_shutdown()
                draining.set()
                await server.stop(settings.drain_seconds)
    log.info("drained")


@asynccontextmanager
async def serving_anyone(
    listen: str,
    *,
    service: str,
    register: Register,
    drain_seconds: float,
    metrics: Metrics,
) -> AsyncIterator[int]:
    """Serves callers that show no token, at an address of its own, inside the block.

    Yields the port. For what tells nobody's data; at most 100 calls at once, the others are
    RESOURCE_EXHAUSTED. Leaving the block waits for calls in flight.
    """
    guard = Guard(tokens=None, endings=endings(service, metrics))
    server = grpc.aio.server(
        interceptors=[guard], options=[*_OPTIONS, *_AGEING], maximum_concurrent_rpcs=ANYONE_CALLS
    )
    register(server)
    port = _bound(server, listen)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(drain_seconds)


def _bound(server: grpc.aio.Server, listen: str) -> int:
    try:
        return server.add_insecure_port(listen)
    except RuntimeError:
        raise CannotListen(listen, "is the port taken?") from None


def endings(service: str, metrics: Metrics) -> Endings:
    """How requests to a service end."""
    return Endings(domain=f"{service}.gesso", metrics=metrics, log=logger(service))


async def _watch(well: health.aio.HealthServicer, names: Sequence[str], check: Check) -> None:
    log = logger("health")
    serving_before: bool | None = None
    while True:
        try:
            async with asyncio.timeout(CHECK_SECONDS * 2):
                await check()
            serves, why = True, ""
        except (Failure, TimeoutError) as error:
            serves, why = False, str(error)
        if serves is not serving_before:
            statuses = health_pb2.HealthCheckResponse
            status = statuses.SERVING if serves else statuses.NOT_SERVING
            for name in names:
                await well.set(name, status)
            log.info("serving" if serves else "not serving", why=why)
            serving_before = serves
        await asyncio.sleep(CHECK_SECONDS)
