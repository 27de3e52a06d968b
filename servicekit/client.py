"""Calls other services: with a deadline, on somebody's behalf, failures as failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc

from servicekit import wire
from servicekit.errors import Failure
from servicekit.identity import Behalf, credentials
from servicekit.pauses import growing
from servicekit.status import failure_from_rpc, no_answer

CALL_SECONDS = 10.0
# Between a stream that is held and the next one.
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0

Request = TypeVar("Request")
Response = TypeVar("Response")

# Every call of ours may be repeated: reads read, writes carry their idempotency key. A server
# that has given up says so (pushback), and is not asked again by this.
_SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": ""},
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}
_OPTIONS = [
    *wire.OPTIONS,
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


class Client:
    """One connection to one service, load-balanced over its instances."""

    def __init__(self, channel: grpc.aio.Channel, *, caller: str, tokens: Sequence[str]) -> None:
        self.channel = channel
        self._credentials = credentials(caller=caller, tokens=tokens)

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        behalf: Behalf,
        *,
        seconds: float = CALL_SECONDS,
    ) -> Response:
        """The answer of a unary call. Raises the failure that it ended with.

        `Unavailable` after `seconds`; a fault of the callee passes through as `AioRpcError`.
        """
        try:
            return await method(request, timeout=seconds, metadata=self._metadata(behalf))
        except grpc.aio.AioRpcError as error:
            failure = failure_from_rpc(error)
            raise (failure or error) from None

    @asynccontextmanager
    async def stream(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[Request, Response],
        request: Request,
        behalf: Behalf,
    ) -> AsyncIterator[AsyncIterator[Response]]:
        """The answers of a streaming call, which is cancelled when the block is left."""
        call = method(request, metadata=self._metadata(behalf))
        try:
            yield _answers(call)
        finally:
            call.cancel()

    @asynccontextmanager
    async def exchange(
        self,
        method: grpc.aio.StreamStreamMultiCallable[Request, Response],
        requests: AsyncIterator[Request],
        behalf: Behalf,
        *,
        connect_seconds: float | None = None,
    ) -> AsyncIterator[AsyncIterator[Response]]:
        """The answers to a stream of requests; cancelled when the block is left.

        With `connect_seconds` the block is entered once the service has sent its metadata;
        `Unavailable` if it does not within that time.
        """
        call = method(requests, metadata=self._metadata(behalf))
        try:
            if connect_seconds is not None:
                await _connected(call, connect_seconds)
            yield _answers(call)
        finally:
            call.cancel()

    def _metadata(self, behalf: Behalf) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*self._credentials, *behalf.metadata())


@asynccontextmanager
async def connected(address: str, *, caller: str, tokens: Sequence[str]) -> AsyncIterator[Client]:
    """A client of the service at `address` (`host:port` or `dns:///name:port`), closed at the end.

    Nothing is asked yet: a service that is down fails its calls, not this.
    """
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        yield Client(channel, caller=caller, tokens=tokens)


async def held(stream: Callable[[], Awaitable[None]], *, lost: Callable[[str], None]) -> None:
    """Holds a stream, for ever: `stream` runs one, and is run again once that has ended.

    `lost` is told why, the first time and then of each one that had lasted.
    """
    loop = asyncio.get_running_loop()
    pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    fresh = True
    while True:
        began = loop.time()
        try:
            await stream()
            why = "it was ended"
        except (Failure, grpc.aio.AioRpcError) as error:
            why = str(error)
        if loop.time() - began > LONGEST_PAUSE_SECONDS:
            pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            fresh = True
        if fresh:
            lost(why)
            fresh = False
        await asyncio.sleep(next(pauses))


async def _connected(call: grpc.aio.Call, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await call.initial_metadata()
    except TimeoutError:
        raise no_answer() from None


async def _answers(call: AsyncIterable[Response]) -> AsyncIterator[Response]:
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as error:
        failure = failure_from_rpc(error)
        raise (failure or error) from None
