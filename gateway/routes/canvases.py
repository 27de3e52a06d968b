"""Canvases: list, read, change, delete, and whether one is up to date."""

from typing import Annotated, Any

import msgspec
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from msgspec import Meta, Raw
from starlette.responses import Response

from gateway.endpoints import Answer, Call, Input, NoQuery, Output, PageQuery, endpoint
from gateway.operations import OPERATION_SCHEMA, operations_from_json
from servicekit.client import Client
from servicekit.strictjson import dumps
from servicekit.times import rfc3339, time_from_timestamp

MAX_CHANGE_BYTES = 4 * 1024 * 1024


class CanvasView(Output, frozen=True):
    """What a list says of a canvas."""

    id: str
    title: str
    revision: int
    node_count: int
    content_hash: str
    created_at: str
    updated_at: str


class Canvases(Output, frozen=True):
    """A page of canvases, the one changed last first."""

    canvases: list[CanvasView]
    next_page_token: str | None = None


class CanvasDocument(Output, frozen=True):
    """A canvas with its content; the top-level fields that are set are members too."""

    id: str
    title: str
    revision: int
    content_hash: str
    nodes: list[dict[str, Any]]
    connections: list[dict[str, Any]]
    created_at: str
    updated_at: str


class CanvasChange(Input, frozen=True):
    """A request to change a canvas: 1 to 500 operations, applied all or none."""

    mutation_id: Annotated[str, Meta(min_length=1, max_length=200)]
    base_revision: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    operations: Annotated[list[Any], Meta(extra_json_schema={"items": OPERATION_SCHEMA})]


class Receipt(Output, frozen=True):
    """What was committed; byte for byte the same in every repeat."""

    mutation_id: str
    revision: int
    applied_at: str


class SyncStatus(Output, frozen=True):
    """Where a canvas is."""

    revision: int
    content_hash: str
    server_time: str


class CanvasRoutes:
    """Canvases of who is signed in."""

    def __init__(self, canvas: Client) -> None:
        self._canvas = canvas
        self._stub = CanvasServiceStub(canvas.channel)

    @endpoint(
        "GET",
        "/api/canvas-projects",
        tag="canvases",
        query=PageQuery,
        answers={200: Canvases},
    )
    async def canvases(self, call: Call[None, PageQuery]) -> Answer:
        """List canvases, the one changed last first."""
        request = canvas_pb2.ListCanvasesRequest(
            page_size=call.query.page_size, page_token=call.query.page_token
        )
        page = await self._canvas.call(self._stub.ListCanvases, request, call.behalf)
        return Answer(
            Canvases(
                canvases=[_view(canvas) for canvas in page.canvases],
                next_page_token=page.next_page_token or None,
            )
        )

    @endpoint(
        "GET",
        "/api/canvas-projects/{canvas_id}",
        tag="canvases",
        answers={200: CanvasDocument, 304: None},
        refusals=("not_found",),
    )
    async def canvas(self, call: Call[None, NoQuery]) -> Answer | Response:
        """Read a canvas. With `If-None-Match` naming its ETag the answer is 304."""
        known = call.request.headers.get("if-none-match", "").removeprefix("W/").strip('"')
        request = canvas_pb2.GetCanvasRequest(canvas_id=call.path["canvas_id"], known_etag=known)
        found = await self._canvas.call(self._stub.GetCanvas, request, call.behalf)
        headers = {"ETag": f'"{found.canvas.etag}"', "Cache-Control": "private, no-cache"}
        if found.canvas.etag == known:
            return Response(status_code=304, headers=headers)
        return Answer(_document(found), headers=headers)

    @endpoint(
        "DELETE",
        "/api/canvas-projects/{canvas_id}",
        tag="canvases",
        answers={204: None},
        refusals=("not_found",),
    )
    async def delete(self, call: Call[None, NoQuery]) -> Answer:
        """Delete a canvas with everything on it. Late edits never bring it back."""
        request = canvas_pb2.DeleteCanvasRequest(canvas_id=call.path["canvas_id"])
        await self._canvas.call(self._stub.DeleteCanvas, request, call.behalf)
        return Answer(status=204)

    @endpoint(
        "PATCH",
        "/api/canvas-projects/{canvas_id}/operations",
        tag="canvases",
        body=CanvasChange,
        max_body_bytes=MAX_CHANGE_BYTES,
        answers={200: Receipt},
        refusals=(
            "invalid_operation",
            "inline_media",
            "canvas_field_conflict",
            "canvas_object_missing",
            "canvas_mutation_id_reused",
            "canvas_too_large",
            "structured_storage_exceeded",
            "canvas_concurrent_write",
        ),
    )
    async def apply(self, call: Call[CanvasChange, NoQuery]) -> Answer:
        """Change a canvas by operations, all or none, each with the values seen before.

        A repeat with the same mutationId answers the same bytes with `Idempotent-Replayed: true`
        and changes nothing.
        """
        request = canvas_pb2.ApplyOperationsRequest(
            canvas_id=call.path["canvas_id"],
            mutation_id=call.body.mutation_id,
            base_revision=call.body.base_revision,
            operations=operations_from_json(call.body.operations),
        )
        applied = await self._canvas.call(self._stub.ApplyOperations, request, call.behalf)
        headers = {"Idempotent-Replayed": "true"} if applied.replayed else {}
        return Answer(Raw(applied.receipt), headers=headers)

    @endpoint(
        "GET",
        "/api/canvas-projects/{canvas_id}/sync-status",
        tag="canvases",
        answers={200: SyncStatus},
        refusals=("not_found",),
    )
    async def sync_status(self, call: Call[None, NoQuery]) -> Answer:
        """Say where a canvas is, without its content."""
        request = canvas_pb2.GetSyncStatusRequest(canvas_id=call.path["canvas_id"])
        status = await self._canvas.call(self._stub.GetSyncStatus, request, call.behalf)
        return Answer(
            SyncStatus(
                revision=status.revision,
                content_hash=status.content_hash,
                server_time=rfc3339(time_from_timestamp(status.server_time)),
            )
        )


def _view(canvas: canvas_pb2.Canvas) -> CanvasView:
    return CanvasView(
        id=canvas.canvas_id,
        title=canvas.title,
        revision=canvas.revision,
        node_count=canvas.node_count,
        content_hash=canvas.content_hash,
        created_at=rfc3339(time_from_timestamp(canvas.create_time)),
        updated_at=rfc3339(time_from_timestamp(canvas.update_time)),
    )


def _document(found: canvas_pb2.GetCanvasResponse) -> Raw:
    """The whole document, put together without reading the JSON that the service gave."""
    view = msgspec.to_builtins(_view(found.canvas))
    # `title` is among the fields, and how many nodes there are can be seen.
    kept = {name: view[name] for name in view if name not in ("title", "nodeCount")}
    head = dumps(kept).encode().removesuffix(b"}")
    fields = found.fields.removeprefix(b"{").removesuffix(b"}")
    return Raw(
        b"".join(
            [
                head,
                b"," + fields if fields else b"",
                b',"nodes":',
                found.nodes,
                b',"connections":',
                found.connections,
                b"}",
            ]
        )
    )
