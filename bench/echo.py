"""An echo through two hops of our kind, HTTP and gRPC: what a gateway and a service cost at least.

`python -m bench.echo service` and `python -m bench.echo gateway ADDRESS` are its two processes;
each says its port on its first line.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench import edits
from bench.http import Browser, request_of
from bench.timing import Timing, timed
from servicekit import client, server
from servicekit.identity import Behalf, Context
from servicekit.settings import ServerSettings
from servicekit.telemetry import Metrics

TOKEN = "a-token-of-the-bench"
PATH = "/echo"
_SERVICE = "bench.Echo"
_METHOD = "Echo"


async def through_two_hops(workers: int) -> Timing:
    """The body of an edit, there and back, by `workers` browsers."""
    async with _process("service") as address, _process("gateway", address) as gateway:
        browsers = [await Browser.at(f"http://{gateway}") for _ in range(workers)]

        async def send(worker: int, number: int) -> None:
            request = request_of(edits.a_patch(number))
            status, _ = await browsers[worker].ask("PATCH", PATH, request)
            assert status == 200

        try:
            return await timed(send, workers=workers, each=edits.EACH)
        finally:
            for browser in browsers:
                await browser.close()


@asynccontextmanager
async def _process(*role: str) -> AsyncIterator[str]:
    """One of the two processes, inside the block; its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.echo", *role, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


async def _service() -> None:
    settings = ServerSettings(internal_tokens=TOKEN, listen="127.0.0.1:0", drain_seconds=1)

    async def check() -> None:
        """An echo is always well."""

    async def echo(request: bytes, _context: Context) -> bytes:
        return request

    handlers: dict[str, Any] = {_METHOD: grpc.unary_unary_rpc_method_handler(echo)}
    echoing = grpc.method_handlers_generic_handler(_SERVICE, handlers)

    async with server.serving(
        settings,
        service="echo",
        offers={_SERVICE: lambda grpc: grpc.add_generic_rpc_handlers((echoing,))},
        check=check,
        draining=asyncio.Event(),
        metrics=Metrics(),
    ) as port:
        print(port, flush=True)
        await asyncio.Event().wait()


async def _gateway(address: str) -> None:
    async with client.connected(address, caller="echo", tokens=(TOKEN,)) as connected:
        method: Any = connected.channel.unary_unary(f"/{_SERVICE}/{_METHOD}")

        async def echo(request: Request) -> Response:
            body = await connected.call(method, await request.body(), Behalf(account_id="us_1"))
            return Response(body, media_type="application/json")

        bound = socket.create_server(("127.0.0.1", 0))
        app = Starlette(routes=[Route(PATH, echo, methods=["PATCH"])])
        config = uvicorn.Config(app, http="httptools", log_config=None, access_log=False)
        print(bound.getsockname()[1], flush=True)
        await uvicorn.Server(config).serve(sockets=[bound])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["service"]:
            uvloop.run(_service())
        case ["gateway", address]:
            uvloop.run(_gateway(address))
        case _:
            sys.exit("usage: python -m bench.echo service | gateway ADDRESS")
