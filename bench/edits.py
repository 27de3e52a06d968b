"""Edits of a canvas: through the gateway, at the service, and the floor that plain SQL sets."""

import json
import secrets
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from bench.suite import Bench, an_account
from bench.timing import Timing, timed
from services.canvas import store

EACH = 300
NODES = 100
CANVAS = "bench"
TEXT = "a paper lantern over a quiet river at night, " * 8


async def through_gateway(bench: Bench, workers: int) -> Timing:
    """PATCH …/operations by `workers` browsers, each with an account and a canvas of its own."""
    browsers = [await bench.browser() for _ in range(workers)]
    path = f"/api/canvas-projects/{CANVAS}/operations"
    for browser in browsers:
        await browser.ask("PATCH", path, _request(_creation()))
    seen: dict[int, str | None] = {}

    async def edit(worker: int, number: int) -> None:
        written = f"{TEXT}{number}"
        operation = {
            "type": "patch_node",
            "id": "n7",
            "patch": {"metadata.prompt": written},
            "before": {"metadata.prompt": seen.get(worker, TEXT)},
        }
        status, body = await browsers[worker].ask("PATCH", path, _request(operation))
        assert status == 200, body
        seen[worker] = written

    try:
        return await timed(edit, workers=workers, each=EACH)
    finally:
        for browser in browsers:
            await browser.close()


async def at_the_service(bench: Bench, workers: int, *, one_canvas: bool = False) -> Timing:
    """ApplyOperations by `workers` callers, each with its canvas, or all on one."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(bench.client("canvas")) for _ in range(workers)]
        accounts = [an_account()] * workers if one_canvas else [an_account() for _ in clients]
        stubs = [CanvasServiceStub(client.channel) for client in clients]
        for worker in range(1 if one_canvas else workers):
            creation = pb.CreateCanvas(canvas=_json(_creation()["canvas"]))
            request = _message(pb.Operation(create_canvas=creation))
            await clients[worker].call(stubs[worker].ApplyOperations, request, accounts[worker])
        seen: dict[int, str] = {}

        async def edit(worker: int, number: int) -> None:
            written = f"{TEXT}{number}"
            patch = pb.PatchNode(
                # On one canvas each caller has a node of its own, so that nobody conflicts.
                id=f"n{worker if one_canvas else 7}",
                patch={"metadata.prompt": _json(written)},
                before={"metadata.prompt": _json(seen.get(worker, TEXT))},
            )
            request = _message(pb.Operation(patch_node=patch))
            await clients[worker].call(stubs[worker].ApplyOperations, request, accounts[worker])
            seen[worker] = written

        return await timed(edit, workers=workers, each=EACH)


async def floor(bench: Bench, workers: int) -> Timing:
    """The same three statements by asyncpg alone: no calls, no JSON, no rules."""
    connections = [await asyncpg.connect(bench.database_url) for _ in range(workers)]
    accounts = [an_account().account_id for _ in connections]
    for connection, account in zip(connections, accounts, strict=True):
        key = await connection.fetchval(
            store.INSERT_CANVAS, account, CANVAS, await connection.fetchval("SELECT now()")
        )
        await connection.executemany(
            "INSERT INTO canvas.node (canvas_key, id, place, hash, body)"
            " VALUES ($1, $2, $3, 0, $4)",
            [(key, f"n{number}", number, json.dumps(_node(number))) for number in range(NODES)],
        )

    async def edit(worker: int, number: int) -> None:
        connection, account = connections[worker], accounts[worker]
        body = json.dumps(_node(7) | {"metadata": {"prompt": f"{TEXT}{number}"}})
        async with connection.transaction():
            row: Any = await connection.fetchrow(store.LOCK_CANVAS, account, CANVAS)
            mutation_id = secrets.token_hex(8)
            await connection.fetch(
                store.GATHER, account, CANVAS, mutation_id, row["key"], ["n7"], [], [], []
            )
            await connection.fetchrow(
                store.SAVE_CHANGE,
                *(row["key"], account, CANVAS, row["revision"] + 1, "{}", "T", NODES, NODES),
                *(1000, 0, row["now"], [], ["n7"], [7], [0], [body], [], [], [], [], [], [], []),
                *(mutation_id, b"d" * 32, b"{}", 0, 0),
            )

    try:
        return await timed(edit, workers=workers, each=EACH)
    finally:
        for connection in connections:
            await connection.close()


def _creation() -> dict[str, Any]:
    nodes = [_node(number) for number in range(NODES)]
    return {"type": "create_canvas", "canvas": {"title": "Bench", "nodes": nodes}}


def _node(number: int) -> dict[str, Any]:
    return {
        "id": f"n{number}",
        "type": "image",
        "title": f"Node {number}",
        "position": {"x": number * 10.5, "y": -number},
        "metadata": {"prompt": TEXT, "status": "idle", "notes": TEXT * 4},
    }


def _request(operation: dict[str, Any]) -> dict[str, Any]:
    return {"mutationId": secrets.token_hex(8), "baseRevision": 1, "operations": [operation]}


def _message(operation: pb.Operation) -> pb.ApplyOperationsRequest:
    return pb.ApplyOperationsRequest(
        canvas_id=CANVAS,
        mutation_id=secrets.token_hex(8),
        base_revision=1,
        operations=[operation],
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
