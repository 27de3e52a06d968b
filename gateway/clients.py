"""Connections to the services, one each."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import grpc
from gesso.generation.v1.generation_pb2 import GetQueueStatsRequest
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from grpc_health.v1 import health, health_pb2

from gateway.settings import Settings
from servicekit import client
from servicekit.client import Client
from servicekit.errors import Unavailable
from servicekit.identity import Behalf

HEALTH_SECONDS = 2.0


@dataclass(frozen=True)
class Clients:
    """A client of each service."""

    canvas: Client
    tasks: Client
    generation: Client
    presence: Client


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Clients]:
    """Clients of all services, closed at the end."""
    async with AsyncExitStack() as stack:

        async def of(address: str) -> Client:
            return await stack.enter_async_context(
                client.connected(address, caller="gateway", tokens=settings.tokens())
            )

        yield Clients(
            canvas=await of(settings.canvas_address),
            tasks=await of(settings.tasks_address),
            generation=await of(settings.generation_address),
            presence=await of(settings.presence_address),
        )


async def check(service: Client) -> None:
    """Raises `Unavailable` unless the service says that it serves."""
    ask = service.channel.unary_unary(
        f"/{health.SERVICE_NAME}/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    with _plain():
        request = health_pb2.HealthCheckRequest()
        answer = await service.call(ask, request, Behalf(), seconds=HEALTH_SECONDS)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable("The service says that it cannot work now.")


async def check_generation(service: Client) -> None:
    """Raises `Unavailable` unless generation serves and has workers."""
    await check(service)
    ask = GenerationServiceStub(service.channel).GetQueueStats
    with _plain():
        stats = await service.call(ask, GetQueueStatsRequest(), Behalf(), seconds=HEALTH_SECONDS)
    if stats.workers == 0:
        raise Unavailable("There are no workers: jobs stay queued until one comes.")


@contextmanager
def _plain() -> Iterator[None]:
    """Turns what a service answers to a call that it does not know into `Unavailable`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise Unavailable(f"The service answers {error.code().name}.") from None
