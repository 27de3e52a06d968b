"""Reads of a canvas at the service, and what plain SQL takes for the same."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import grpc
from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from bench import edits
from bench.suite import Bench, an_account
from bench.timing import Timing, timed
from servicekit import wire
from servicekit.identity import Context

NODES = 1_000
EACH = 100
CHANGES = 3

_NODES = """
SELECT body
  FROM canvas.node
 WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2)
 ORDER BY place
"""


async def whole_at_the_service(bench: Bench) -> Timing:
    """GetCanvas of 1,000 nodes, one after another."""
    account = an_account()
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        await client.call(stub.ApplyOperations, edits.a_canvas(NODES), account)

        async def read(_worker: int, _number: int) -> None:
            request = pb.GetCanvasRequest(canvas_id=edits.CANVAS)
            found = await client.call(stub.GetCanvas, request, account)
            assert found.canvas.node_count == NODES

        return await timed(read, workers=1, each=EACH)


async def whole_plain(bench: Bench) -> Timing:
    """The rows of 1,000 nodes by asyncpg, joined to one JSON array."""
    async with _plainly(bench) as joined:

        async def read(_worker: int, _number: int) -> None:
            assert await joined()

        return await timed(read, workers=1, each=EACH)


async def whole_behind_a_bare_handler(bench: Bench) -> Timing:
    """The same, asked for by gRPC: what the hop adds."""
    async with _plainly(bench) as joined:

        async def handle(_request: bytes, _context: Context) -> bytes:
            return await joined()

        handlers: dict[str, Any] = {"Read": grpc.unary_unary_rpc_method_handler(handle)}
        server = grpc.aio.server(options=wire.OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=wire.OPTIONS) as channel:
            method: Any = channel.unary_unary("/bench/Read")

            async def read(_worker: int, _number: int) -> None:
                assert await method(b"")

            timing = await timed(read, workers=1, each=EACH)
        await server.stop(None)
        return timing


@asynccontextmanager
async def _plainly(bench: Bench) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Reads all nodes of a canvas over a connection of its own, as one JSON array."""
    account = an_account()
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        await client.call(stub.ApplyOperations, edits.a_canvas(NODES), account)
    connection = await asyncpg.connect(bench.database_url)

    async def joined() -> bytes:
        rows = await connection.fetch(_NODES, account.account_id, edits.CANVAS)
        return f"[{','.join(row['body'] for row in rows)}]".encode()

    try:
        yield joined
    finally:
        await connection.close()


async def changes(bench: Bench) -> Timing:
    """ListChanges of the last three revisions of a canvas of 1,000 nodes."""
    account = an_account()
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        await client.call(stub.ApplyOperations, edits.a_canvas(NODES), account)
        for number in range(20):
            await client.call(stub.ApplyOperations, edits.a_new_node(f"new{number}"), account)
        caller = await bench.caller("canvas", "/gesso.canvas.v1.CanvasService/ListChanges", account)

        async def read(_worker: int, _number: int) -> None:
            request = pb.ListChangesRequest(canvas_id=edits.CANVAS, after_revision=21 - CHANGES)
            found = await caller.call(request, pb.ListChangesResponse)
            assert len(found.changes) == CHANGES

        try:
            return await timed(read, workers=1, each=edits.EACH)
        finally:
            caller.close()
