"""Canvases: list, read, change, delete, and whether one is up to date."""

from typing import Annotated, Any, Literal

import msgspec
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Meta, Raw
from starlette.requests import Request
from starlette.responses import Response

from gateway.endpoints import Answer, Call, Input, NoQuery, Output, PageQuery, endpoint
from gateway.mutations import Mutations
from gateway.operations import OPERATION_SCHEMA, operations_from_json
from servicekit.client import Client
from servicekit.errors import Invalid
from servicekit.strictjson import dumps
from servicekit.times import rfc3339, time_from_timestamp

MAX_CHANGE_BYTES = 4 * 1024 * 1024

_AGENT_STATES = {
    canvas_pb2.AGENT_STATE_QUEUED: "queued",
    canvas_pb2.AGENT_STATE_RUNNING: "running",
    canvas_pb2.AGENT_STATE_AWAITING_APPROVAL: "awaiting_approval",
    canvas_pb2.AGENT_STATE_FINISHING: "finishing",
}


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


class EditProof(Input, frozen=True):
    """Shows that a session has leased the text of a node."""

    node_id: str
    session_id: str
    token: str


class CanvasChange(Input, frozen=True):
    """A request to change a canvas: 1 to 500 operations, applied all or none.

    Operations are compared with what they say they saw before; `baseRevision` is only noted, and
    is the same in every repeat.
    """

    mutation_id: Annotated[str, Meta(min_length=1, max_length=200)]
    base_revision: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    operations: Annotated[list[Any], Meta(extra_json_schema={"items": OPERATION_SCHEMA})]
    edit_proofs: tuple[EditProof, ...] = ()


class Receipt(Output, frozen=True):
    """What was committed; byte for byte the same in every repeat."""

    mutation_id: str
    revision: int
    applied_at: str


class LeaseView(Output, frozen=True):
    """The text of a node belongs to a session for a while."""

    node_id: str
    session_id: str
    expires_at: str


class AgentView(Output, frozen=True):
    """An agent run has the canvas."""

    task_id: str
    state: str
    since: str


class SyncStatus(Output, frozen=True):
    """Where a canvas is, which leases hold, and which agent run has it."""

    revision: int
    content_hash: str
    server_time: str
    leases: list[LeaseView]
    agent: AgentView | None


class ChangesQuery(Input, frozen=True):
    """Since when."""

    after: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ChangeView(Output, frozen=True):
    """What one request did: operations without baselines."""

    revision: int
    mutation_id: str
    operations: list[dict[str, Any]]
    at: str


class Changes(Output, frozen=True):
    """Everything that happened since, one change for each revision, oldest first."""

    revision: int
    content_hash: str
    changes: list[ChangeView]


class EditLeaseRequest(Input, frozen=True):
    """What to do with the lease of a node's text. `token` is needed to renew and release."""

    action: Literal["acquire", "renew", "release"]
    node_id: Annotated[str, Meta(min_length=1, max_length=200)]
    session_id: Annotated[str, Meta(min_length=1, max_length=200)]
    token: str | None = None


class EditLease(Output, frozen=True):
    """The lease as it is now; nothing but the time after a release."""

    server_time: str
    token: str | None = None
    expires_at: str | None = None


class CanvasRoutes:
    """Canvases of who is signed in."""

    def __init__(self, canvas: Client, mutations: Mutations) -> None:
        self._canvas = canvas
        self._mutations = mutations
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
        known = _known_etag(call.request)
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
            "canvas_edit_lease_conflict",
            "canvas_media_assets_pending",
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
            edit_proofs=[
                canvas_pb2.EditProof(
                    node_id=proof.node_id, session_id=proof.session_id, token=proof.token
                )
                for proof in call.body.edit_proofs
            ],
        )
        applied = await self._mutations.apply(request, call.behalf)
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
        has_agent = status.HasField("agent")
        return Answer(
            SyncStatus(
                revision=status.revision,
                content_hash=status.content_hash,
                server_time=_time(status.server_time),
                leases=[
                    LeaseView(
                        node_id=lease.node_id,
                        session_id=lease.session_id,
                        expires_at=_time(lease.expire_time),
                    )
                    for lease in status.leases
                ],
                agent=_view_of_agent(status.agent) if has_agent else None,
            )
        )

    @endpoint(
        "GET",
        "/api/canvas-projects/{canvas_id}/changes",
        tag="canvases",
        query=ChangesQuery,
        answers={200: Changes},
        refusals=("not_found", "changes_expired"),
    )
    async def changes(self, call: Call[None, ChangesQuery]) -> Answer:
        """List what happened since a revision, as operations to apply to what one has.

        With `If-None-Match` naming the ETag of that revision, a canvas that was created anew
        since is told from the one that it was. The answer's ETag is that of the canvas now.
        """
        request = canvas_pb2.ListChangesRequest(
            canvas_id=call.path["canvas_id"],
            after_revision=call.query.after,
            known_etag=_known_etag(call.request),
        )
        log = await self._canvas.call(self._stub.ListChanges, request, call.behalf)
        changes = [
            {
                "revision": change.revision,
                "mutationId": change.mutation_id,
                "operations": Raw(change.operations),
                "at": _time(change.apply_time),
            }
            for change in log.changes
        ]
        document = {
            "revision": log.revision,
            "contentHash": log.content_hash,
            "changes": changes,
        }
        return Answer(document, headers={"ETag": f'"{log.etag}"'})

    @endpoint(
        "POST",
        "/api/canvas-projects/{canvas_id}/edit-lease",
        tag="canvases",
        body=EditLeaseRequest,
        answers={200: EditLease},
        refusals=(
            "canvas_edit_lease_conflict",
            "canvas_object_missing",
            "canvas_concurrent_write",
            "invalid_operation",
        ),
    )
    async def edit_lease(self, call: Call[EditLeaseRequest, NoQuery]) -> Answer:
        """Acquire, renew or release the lease of a node's text, 30 seconds at a time.

        While a session has it, others cannot write the node's text; everything else they can.
        """
        asked = call.body
        names = {
            "canvas_id": call.path["canvas_id"],
            "node_id": asked.node_id,
            "session_id": asked.session_id,
        }
        if asked.action == "acquire":
            acquired = await self._canvas.call(
                self._stub.AcquireEditLease,
                canvas_pb2.AcquireEditLeaseRequest(**names),
                call.behalf,
            )
            return Answer(_view_of_lease(acquired))
        if not asked.token:
            raise Invalid(f"To {asked.action} a lease its token is needed.", path="token")
        if asked.action == "renew":
            renewed = await self._canvas.call(
                self._stub.RenewEditLease,
                canvas_pb2.RenewEditLeaseRequest(**names, token=asked.token),
                call.behalf,
            )
            return Answer(_view_of_lease(renewed))
        released = await self._canvas.call(
            self._stub.ReleaseEditLease,
            canvas_pb2.ReleaseEditLeaseRequest(**names, token=asked.token),
            call.behalf,
        )
        return Answer(EditLease(server_time=_time(released.server_time)))


def _known_etag(request: Request) -> str:
    """The ETag that a request says it has."""
    return request.headers.get("if-none-match", "").removeprefix("W/").strip('"')


def _view_of_lease(
    lease: canvas_pb2.AcquireEditLeaseResponse | canvas_pb2.RenewEditLeaseResponse,
) -> EditLease:
    return EditLease(
        server_time=_time(lease.server_time),
        token=lease.token,
        expires_at=_time(lease.expire_time),
    )


def _view_of_agent(agent: canvas_pb2.AgentOccupancy) -> AgentView:
    return AgentView(
        task_id=agent.task_id, state=_AGENT_STATES[agent.state], since=_time(agent.since)
    )


def _time(stamp: Timestamp) -> str:
    return rfc3339(time_from_timestamp(stamp))


def _view(canvas: canvas_pb2.Canvas) -> CanvasView:
    return CanvasView(
        id=canvas.canvas_id,
        title=canvas.title,
        revision=canvas.revision,
        node_count=canvas.node_count,
        content_hash=canvas.content_hash,
        created_at=_time(canvas.create_time),
        updated_at=_time(canvas.update_time),
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
