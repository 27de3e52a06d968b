"""Reads of a canvas at the service, and what plain SQL takes for the same."""

import asyncpg
from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from bench import edits
from bench.suite import Bench, an_account
from bench.timing import Timing, timed

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
    account = an_account()
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        await client.call(stub.ApplyOperations, edits.a_canvas(NODES), account)
    connection = await asyncpg.connect(bench.database_url)

    async def read(_worker: int, _number: int) -> None:
        rows = await connection.fetch(_NODES, account.account_id, edits.CANVAS)
        joined = f"[{','.join(row['body'] for row in rows)}]".encode()
        assert len(rows) == NODES
        assert joined

    try:
        return await timed(read, workers=1, each=EACH)
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
