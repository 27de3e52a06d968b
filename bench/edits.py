"""Edits of a canvas: through the gateway, at the service, and the floor that plain SQL sets."""

import json
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg
import psutil
from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from bench.rpc import Caller
from bench.suite import Bench, an_account
from bench.timing import Timing, timed
from gateway.mutations import mutating
from servicekit.identity import Behalf
from services.canvas import store

EACH = 300
NODES = 100
CANVAS = "bench"
TOUCHED = 1_000
_APPLY = "/gesso.canvas.v1.CanvasService/ApplyOperations"

Way = Callable[[pb.ApplyOperationsRequest], Awaitable[pb.ApplyOperationsResponse]]

# An edit in three statements, without anything else that the service does.
LOCK = """
SELECT key, revision, clock_timestamp() AS now
  FROM canvas.canvas
 WHERE account_id = $1
   AND canvas_id = $2
   FOR UPDATE
"""
READ = """
SELECT mutation_id, NULL AS body
  FROM canvas.receipt
 WHERE account_id = $1
   AND canvas_id = $2
   AND mutation_id = $3
UNION ALL
SELECT id, body
  FROM canvas.node
 WHERE canvas_key = $4
   AND id = ANY($5::text[])
"""
WRITE = """
WITH head AS (
    UPDATE canvas.canvas
       SET revision = $2, fields = $3, size_bytes = $4, updated_at = $5
     WHERE key = $1
), nodes AS (
    INSERT INTO canvas.node (canvas_key, id, place, hash, body)
    SELECT $1, id, place, 0, body
      FROM unnest($6::text[], $7::bigint[], $8::text[]) AS written (id, place, body)
        ON CONFLICT (canvas_key, id)
        DO UPDATE SET body = excluded.body
), receipts AS (
    INSERT INTO canvas.receipt
           (account_id, canvas_id, mutation_id, digest, revision, result, created_at)
    VALUES ($9, $10, $11, $12, $2, $13, $5)
)
INSERT INTO canvas.change (canvas_key, revision, mutation_id, operations, at)
VALUES ($1, $2, $11, $14, $5)
"""
TEXT = "a paper lantern over a quiet river at night, " * 8


async def through_gateway(bench: Bench, workers: int, *, one_canvas: bool = False) -> Timing:
    """PATCH …/operations by `workers` browsers, each with its account, or all on one canvas."""
    first = await bench.browser()
    others = [
        await (bench.window(first) if one_canvas else bench.browser()) for _ in range(workers - 1)
    ]
    browsers = [first, *others]
    made = {"type": "create_canvas", "canvas": _canvas(NODES)}
    for browser in browsers[:1] if one_canvas else browsers:
        await browser.change(CANVAS, made)
    seen: dict[int, str] = {}

    async def edit(worker: int, number: int) -> None:
        node_id = f"n{worker if one_canvas else 7}"
        patch = a_patch(number, seen.get(worker, TEXT), node_id=node_id)
        await browsers[worker].change(CANVAS, patch)
        seen[worker] = f"{TEXT}{number}"

    try:
        return await timed(edit, workers=workers, each=EACH)
    finally:
        for browser in browsers:
            await browser.close()


async def at_the_service(
    bench: Bench, workers: int, *, one_canvas: bool = False, size: int = NODES
) -> Timing:
    """ApplyOperations by `workers` callers, each with its canvas of `size` nodes, or all on one."""
    callers: list[Caller] = []

    async def ways(accounts: list[Behalf]) -> list[Way]:
        callers[:] = [await bench.caller("canvas", _APPLY, account) for account in accounts]
        return [partial(caller.call, answer=pb.ApplyOperationsResponse) for caller in callers]

    try:
        return await _edits(bench, ways, workers, one_canvas=one_canvas, size=size)
    finally:
        for caller in callers:
            caller.close()


async def over_a_stream(bench: Bench, workers: int) -> Timing:
    """ApplyMutations, as a gateway does it, by `workers` writers on one canvas."""
    async with bench.client("canvas") as client, mutating(client, streams=1) as mutations:

        async def ways(accounts: list[Behalf]) -> list[Way]:
            return [partial(mutations.apply, behalf=account) for account in accounts]

        return await _edits(bench, ways, workers, one_canvas=True)


async def _edits(
    bench: Bench,
    ways: Callable[[list[Behalf]], Awaitable[list[Way]]],
    workers: int,
    *,
    one_canvas: bool,
    size: int = NODES,
) -> Timing:
    """What was acknowledged is then read back: each writer's node holds what it wrote last."""
    accounts = [an_account()] * workers if one_canvas else [an_account() for _ in range(workers)]
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        for account in dict.fromkeys(accounts):
            await client.call(stub.ApplyOperations, a_canvas(size), account)
    send = await ways(accounts)
    # On one canvas each writer has a node of its own, so that nobody conflicts.
    nodes = [f"n{worker if one_canvas else 7}" for worker in range(workers)]
    seen: dict[int, str] = {}

    async def edit(worker: int, number: int) -> None:
        written = f"{TEXT}{number}"
        patch = pb.PatchNode(
            id=nodes[worker],
            patch={"metadata.prompt": _json(written)},
            before={"metadata.prompt": _json(seen.get(worker, TEXT))},
        )
        request = _message(pb.Operation(patch_node=patch))
        await send[worker](request)
        seen[worker] = written

    timing = await timed(edit, workers=workers, each=EACH)
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        for worker, account in enumerate(accounts):
            read = pb.BatchGetNodesRequest(canvas_id=CANVAS, node_ids=[nodes[worker]])
            found = await client.call(stub.BatchGetNodes, read, account)
            assert json.loads(found.nodes[0])["metadata"]["prompt"] == seen[worker]
    return timing


async def floor(bench: Bench, workers: int, *, one_canvas: bool = False) -> Timing:
    """An edit by asyncpg alone, in a transaction of three statements: no calls, no JSON, no rules.

    `workers` connections, each with an account and a canvas of its own, or all on one.
    """
    connections = [await asyncpg.connect(bench.database_url) for _ in range(workers)]
    accounts = [secrets.token_hex(8) for _ in connections]
    if one_canvas:
        accounts = accounts[:1] * workers
    for account in dict.fromkeys(accounts):
        await _stored_canvas(connections[0], account)

    async def edit(worker: int, number: int) -> None:
        connection, account = connections[worker], accounts[worker]
        node_id = f"n{worker if one_canvas else 7}"
        body = json.dumps(node(7) | {"metadata": {"prompt": f"{TEXT}{number}"}})
        mutation_id = secrets.token_hex(8)
        async with connection.transaction():
            row: Any = await connection.fetchrow(LOCK, account, CANVAS)
            await connection.fetch(READ, account, CANVAS, mutation_id, row["key"], [node_id])
            await connection.execute(
                WRITE,
                *(row["key"], row["revision"] + 1, "{}", 1000, row["now"], [node_id], [7], [body]),
                *(account, CANVAS, mutation_id, b"d" * 32, b"{}", "[]"),
            )

    try:
        return await timed(edit, workers=workers, each=EACH)
    finally:
        for connection in connections:
            await connection.close()


async def memory(bench: Bench) -> str:
    """What the service holds after so many canvases were made and edited, in a sentence."""
    process = psutil.Process(bench.pids["canvas"])
    sizes: list[int] = []
    async with bench.client("canvas") as client:
        stub = CanvasServiceStub(client.channel)
        for number in range(TOUCHED + 1):
            if number % (TOUCHED // 4) == 0:
                sizes.append(process.memory_info().rss // 2**20)
            account = an_account()
            await client.call(stub.ApplyOperations, a_canvas(NODES), account)
            await client.call(stub.ApplyOperations, a_new_node("new"), account)
    held = ", ".join(map(str, sizes))
    return f"Canvas service, after each quarter of {TOUCHED} canvases of {NODES} nodes: {held} MiB."


async def _stored_canvas(connection: "asyncpg.Connection[Any]", account: str) -> None:
    key = await connection.fetchval(
        store.INSERT_CANVAS, account, CANVAS, await connection.fetchval("SELECT now()")
    )
    await connection.executemany(
        "INSERT INTO canvas.node (canvas_key, id, place, hash, body) VALUES ($1, $2, $3, 0, $4)",
        [(key, f"n{number}", number, json.dumps(node(number))) for number in range(NODES)],
    )


def a_canvas(size: int) -> pb.ApplyOperationsRequest:
    """Makes a canvas of `size` nodes."""
    return _message(pb.Operation(create_canvas=pb.CreateCanvas(canvas=_json(_canvas(size)))))


def a_new_node(node_id: str) -> pb.ApplyOperationsRequest:
    """Makes one more node on it."""
    return _message(pb.Operation(create_node=pb.CreateNode(node=_json(node(1) | {"id": node_id}))))


def a_patch(number: int, before: str = TEXT, *, node_id: str = "n7") -> dict[str, Any]:
    """The operation that patches a prompt, as the gateway takes it."""
    return {
        "type": "patch_node",
        "id": node_id,
        "patch": {"metadata.prompt": f"{TEXT}{number}"},
        "before": {"metadata.prompt": before},
    }


def _canvas(size: int) -> dict[str, Any]:
    nodes = [node(number) for number in range(size)]
    return {"title": "Bench", "nodes": nodes}


def node(number: int) -> dict[str, Any]:
    return {
        "id": f"n{number}",
        "type": "image",
        "title": f"Node {number}",
        "position": {"x": number * 10.5, "y": -number},
        "metadata": {"prompt": TEXT, "status": "idle", "notes": TEXT[:150]},
    }


def _message(operation: pb.Operation) -> pb.ApplyOperationsRequest:
    return pb.ApplyOperationsRequest(
        canvas_id=CANVAS,
        mutation_id=secrets.token_hex(8),
        base_revision=1,
        operations=[operation],
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
