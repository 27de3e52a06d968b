"""Speaks gesso.canvas.v1: messages into values and back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceServicer

from servicekit.errors import Invalid
from servicekit.identity import Context, account_of
from servicekit.interceptors import Endings
from servicekit.pages import page_of, page_size, place_from_token
from servicekit.strictjson import NotJson, loads
from servicekit.times import micros_from_time, time_from_micros, timestamp_from_time
from services.canvas.batch import Applied
from services.canvas.domain.canonical import hex_of
from services.canvas.domain.edits import (
    CreateCanvas,
    CreateConnection,
    CreateNode,
    Edit,
    PatchNode,
    RemoveConnection,
    RemoveNode,
    SetField,
    UpdateConnection,
)
from services.canvas.domain.failures import InvalidOperation, located
from services.canvas.domain.leases import Proof
from services.canvas.domain.mutation import Mutation
from services.canvas.domain.values import MAX_DEPTH
from services.canvas.service import NEWEST, CanvasService
from services.canvas.store import Agent, Summary
from services.canvas.streams import MutationStream

MAX_NODES_READ = 100

_AGENT_STATES = {
    canvas_pb2.AGENT_STATE_QUEUED: "queued",
    canvas_pb2.AGENT_STATE_RUNNING: "running",
    canvas_pb2.AGENT_STATE_AWAITING_APPROVAL: "awaiting_approval",
    canvas_pb2.AGENT_STATE_FINISHING: "finishing",
}
_STATES_OF_AGENTS = {name: state for state, name in _AGENT_STATES.items()}
_NEWEST = (micros_from_time(NEWEST[0]), NEWEST[1])


class CanvasRpc(CanvasServiceServicer):
    """The canvas service as gRPC."""

    def __init__(self, service: CanvasService, endings: Endings, draining: asyncio.Event) -> None:
        self._service = service
        self._endings = endings
        self._draining = draining

    async def ListCanvases(
        self, request: canvas_pb2.ListCanvasesRequest, context: Context
    ) -> canvas_pb2.ListCanvasesResponse:
        """See canvas.proto."""
        size = page_size(request.page_size)
        micros, incarnation = place_from_token(request.page_token, newest=_NEWEST)
        found = await self._service.page(
            account_of(context), (time_from_micros(micros), incarnation), size + 1
        )
        shown, next_page_token = page_of(
            found, size, lambda canvas: (micros_from_time(canvas.updated_at), canvas.incarnation)
        )
        return canvas_pb2.ListCanvasesResponse(
            canvases=map(canvas_from_summary, shown), next_page_token=next_page_token
        )

    async def GetCanvas(
        self, request: canvas_pb2.GetCanvasRequest, context: Context
    ) -> canvas_pb2.GetCanvasResponse:
        """See canvas.proto."""
        whole = await self._service.read(
            account_of(context), request.canvas_id, known_etag=request.known_etag
        )
        if isinstance(whole, Summary):
            return canvas_pb2.GetCanvasResponse(canvas=canvas_from_summary(whole))
        return canvas_pb2.GetCanvasResponse(
            canvas=canvas_from_summary(whole.summary),
            fields=whole.fields.encode(),
            nodes=_array(whole.nodes),
            connections=_array(whole.connections),
        )

    async def DeleteCanvas(
        self, request: canvas_pb2.DeleteCanvasRequest, context: Context
    ) -> canvas_pb2.DeleteCanvasResponse:
        """See canvas.proto."""
        await self._service.delete(account_of(context), request.canvas_id)
        return canvas_pb2.DeleteCanvasResponse()

    async def ApplyOperations(
        self, request: canvas_pb2.ApplyOperationsRequest, context: Context
    ) -> canvas_pb2.ApplyOperationsResponse:
        """See canvas.proto."""
        return response_from_applied(
            await self._service.apply(account_of(context), mutation_from_proto(request))
        )

    async def ApplyMutations(
        self,
        request_iterator: AsyncIterator[canvas_pb2.ApplyMutationsRequest],
        context: Context,
    ) -> AsyncIterator[canvas_pb2.ApplyMutationsResponse]:
        """See canvas.proto."""
        stream = MutationStream(self._begin, response_from_applied, self._endings, self._draining)
        # Tells the gateway that it is connected, before there is anything to say.
        await context.send_initial_metadata(())
        async for response in stream.responses(request_iterator):
            yield response

    def _begin(self, message: canvas_pb2.Mutation) -> asyncio.Future[Applied]:
        if not message.account_id:
            raise Invalid("A mutation needs the account that it acts for.", path="account_id")
        return self._service.begin(message.account_id, mutation_from_proto(message.request))

    async def GetSyncStatus(
        self, request: canvas_pb2.GetSyncStatusRequest, context: Context
    ) -> canvas_pb2.GetSyncStatusResponse:
        """See canvas.proto."""
        status = await self._service.sync_status(account_of(context), request.canvas_id)
        return canvas_pb2.GetSyncStatusResponse(
            revision=status.revision,
            content_hash=hex_of(status.content_hash),
            server_time=timestamp_from_time(status.now),
            leases=[
                canvas_pb2.EditLease(
                    node_id=lease.node_id,
                    session_id=lease.session_id,
                    expire_time=timestamp_from_time(lease.expires_at),
                )
                for lease in status.leases
            ],
            agent=occupancy_from_agent(status.agent) if status.agent else None,
            incarnation=status.incarnation,
        )

    async def ListChanges(
        self, request: canvas_pb2.ListChangesRequest, context: Context
    ) -> canvas_pb2.ListChangesResponse:
        """See canvas.proto."""
        if request.after_revision < 0:
            raise Invalid("A revision is not negative.", path="after")
        log = await self._service.changes(
            account_of(context),
            request.canvas_id,
            after=request.after_revision,
            known_etag=request.known_etag,
        )
        return canvas_pb2.ListChangesResponse(
            revision=log.revision,
            changes=[
                canvas_pb2.Change(
                    revision=change.revision,
                    mutation_id=change.mutation_id,
                    operations=change.operations.encode(),
                    apply_time=timestamp_from_time(change.at),
                )
                for change in log.changes
            ],
            content_hash=hex_of(log.content_hash),
            etag=log.etag,
        )

    async def AcquireEditLease(
        self, request: canvas_pb2.AcquireEditLeaseRequest, context: Context
    ) -> canvas_pb2.AcquireEditLeaseResponse:
        """See canvas.proto."""
        held = await self._service.acquire_lease(
            account_of(context), request.canvas_id, request.node_id, request.session_id
        )
        return canvas_pb2.AcquireEditLeaseResponse(
            token=held.lease.token,
            expire_time=timestamp_from_time(held.lease.expires_at),
            server_time=timestamp_from_time(held.now),
        )

    async def RenewEditLease(
        self, request: canvas_pb2.RenewEditLeaseRequest, context: Context
    ) -> canvas_pb2.RenewEditLeaseResponse:
        """See canvas.proto."""
        held = await self._service.renew_lease(
            account_of(context),
            request.canvas_id,
            request.node_id,
            request.session_id,
            request.token,
        )
        return canvas_pb2.RenewEditLeaseResponse(
            token=held.lease.token,
            expire_time=timestamp_from_time(held.lease.expires_at),
            server_time=timestamp_from_time(held.now),
        )

    async def ReleaseEditLease(
        self, request: canvas_pb2.ReleaseEditLeaseRequest, context: Context
    ) -> canvas_pb2.ReleaseEditLeaseResponse:
        """See canvas.proto."""
        now = await self._service.release_lease(
            account_of(context),
            request.canvas_id,
            request.node_id,
            request.session_id,
            request.token,
        )
        return canvas_pb2.ReleaseEditLeaseResponse(server_time=timestamp_from_time(now))

    async def AdmitAgent(
        self, request: canvas_pb2.AdmitAgentRequest, context: Context
    ) -> canvas_pb2.AdmitAgentResponse:
        """See canvas.proto."""
        agent = await self._service.admit_agent(
            account_of(context), request.canvas_id, request.task_id
        )
        return canvas_pb2.AdmitAgentResponse(agent=occupancy_from_agent(agent))

    async def SetAgentState(
        self, request: canvas_pb2.SetAgentStateRequest, context: Context
    ) -> canvas_pb2.SetAgentStateResponse:
        """See canvas.proto."""
        state = _AGENT_STATES.get(request.state)
        if state is None:
            raise Invalid("A run is in one of the known states.", path="state")
        agent = await self._service.set_agent_state(
            account_of(context), request.canvas_id, request.task_id, state
        )
        return canvas_pb2.SetAgentStateResponse(agent=occupancy_from_agent(agent))

    async def ReleaseAgent(
        self, request: canvas_pb2.ReleaseAgentRequest, context: Context
    ) -> canvas_pb2.ReleaseAgentResponse:
        """See canvas.proto."""
        await self._service.release_agent(account_of(context), request.canvas_id, request.task_id)
        return canvas_pb2.ReleaseAgentResponse()

    async def BatchGetNodes(
        self, request: canvas_pb2.BatchGetNodesRequest, context: Context
    ) -> canvas_pb2.BatchGetNodesResponse:
        """See canvas.proto."""
        if not 0 < len(request.node_ids) <= MAX_NODES_READ:
            raise Invalid(f"1 to {MAX_NODES_READ} nodes can be read at once.", path="node_ids")
        revision, bodies = await self._service.some_nodes(
            account_of(context), request.canvas_id, list(request.node_ids)
        )
        return canvas_pb2.BatchGetNodesResponse(
            revision=revision, nodes=[body.encode() for body in bodies]
        )


def canvas_from_summary(summary: Summary) -> canvas_pb2.Canvas:
    """What lists say of a canvas, as a message."""
    return canvas_pb2.Canvas(
        canvas_id=summary.canvas_id,
        title=summary.title,
        revision=summary.revision,
        node_count=summary.node_count,
        create_time=timestamp_from_time(summary.created_at),
        update_time=timestamp_from_time(summary.updated_at),
        etag=summary.etag,
        content_hash=hex_of(summary.content_hash),
    )


def occupancy_from_agent(agent: Agent) -> canvas_pb2.AgentOccupancy:
    """An agent run that has a canvas, as a message."""
    return canvas_pb2.AgentOccupancy(
        task_id=agent.task_id,
        state=_STATES_OF_AGENTS[agent.state],
        since=timestamp_from_time(agent.since),
    )


def mutation_from_proto(request: canvas_pb2.ApplyOperationsRequest) -> Mutation:
    """A request to change a canvas as a value. Raises `InvalidOperation`."""
    return Mutation(
        canvas_id=request.canvas_id,
        mutation_id=request.mutation_id,
        base_revision=request.base_revision,
        edits=edits_from_proto(request.operations),
        proofs=[
            Proof(proof.node_id, proof.session_id, proof.token) for proof in request.edit_proofs
        ],
    )


def response_from_applied(applied: Applied) -> canvas_pb2.ApplyOperationsResponse:
    """What a committed change answers, as a message."""
    return canvas_pb2.ApplyOperationsResponse(
        receipt=applied.receipt.result,
        revision=applied.receipt.revision,
        replayed=applied.replayed,
    )


def edits_from_proto(messages: Any) -> list[Edit]:
    """The operations of a request as values. Raises `InvalidOperation`, saying which."""
    edits: list[Edit] = []
    with located() as place:
        for place.index, message in enumerate(messages):
            edits.append(_edit_from_proto(message))
    return edits


def _edit_from_proto(message: canvas_pb2.Operation) -> Edit:
    match message.WhichOneof("kind"):
        case "create_canvas":
            # Its nodes lie two levels deep.
            canvas = _object("canvas", message.create_canvas.canvas, max_depth=MAX_DEPTH + 2)
            return CreateCanvas(
                nodes=_list("nodes", canvas.pop("nodes", [])),
                connections=_list("connections", canvas.pop("connections", [])),
                fields={name: value for name, value in canvas.items() if value is not None},
            )
        case "create_node":
            return CreateNode(_object("node", message.create_node.node))
        case "patch_node":
            return PatchNode(
                node_id=message.patch_node.id,
                patch=_values(message.patch_node.patch),
                before=_values(message.patch_node.before),
            )
        case "remove_node":
            expected = _object("expected", message.remove_node.expected)
            return RemoveNode(message.remove_node.id, expected)
        case "create_connection":
            return CreateConnection(_object("connection", message.create_connection.connection))
        case "update_connection":
            update = message.update_connection
            return UpdateConnection(
                connection_id=update.id,
                expected=_object("expected", update.expected),
                connection=_object("connection", update.connection),
            )
        case "remove_connection":
            expected = _object("expected", message.remove_connection.expected)
            return RemoveConnection(message.remove_connection.id, expected)
        case "set_field":
            return SetField(
                name=message.set_field.field,
                value=_value("value", message.set_field.value),
                before=_value("beforeValue", message.set_field.before_value),
            )
        case _:
            raise InvalidOperation("The operation is of no known type.", path="type")


def _value(name: str, text: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    if not text:
        return None
    try:
        return loads(text, max_depth=max_depth)
    except NotJson as error:
        raise InvalidOperation(f"{name}: {error.detail}", path=name) from None


def _values(texts: Any) -> dict[str, Any]:
    return {path: _value(path, text) for path, text in texts.items()}


def _object(name: str, text: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    value = _value(name, text, max_depth=max_depth)
    if not isinstance(value, dict):
        raise InvalidOperation(f"{name} must be a JSON object.", path=name)
    return value


def _list(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidOperation(f"{name} must be a JSON array.", path=name)
    return value


def _array(texts: list[str]) -> bytes:
    return f"[{','.join(texts)}]".encode()
