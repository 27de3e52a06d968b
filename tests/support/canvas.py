"""Operations of canvases as messages, and windows that send them."""

import json
import secrets
from typing import Any

from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from gateway.operations import operations_from_json
from servicekit.client import Client
from servicekit.identity import Behalf


def node(node_id: str, **metadata: Any) -> dict[str, Any]:
    return {
        "id": node_id,
        "type": "text",
        "title": "A node",
        "position": {"x": 120.5, "y": -80},
        "metadata": metadata,
    }


def link(link_id: str, start: str, end: str) -> dict[str, Any]:
    return {"id": link_id, "fromNodeId": start, "toNodeId": end}


def create_canvas(**canvas: Any) -> dict[str, Any]:
    return {"type": "create_canvas", "canvas": {"title": "A canvas", **canvas}}


def create_node(value: Any) -> dict[str, Any]:
    return {"type": "create_node", "node": value}


def patch_node(
    node_id: str, patch: dict[str, Any], before: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"type": "patch_node", "id": node_id, "patch": patch, "before": before or {}}


def remove_node(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "remove_node", "id": value["id"], "expected": value}


def create_link(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "create_connection", "connection": value}


def update_link(value: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "update_connection",
        "id": value["id"],
        "expected": expected,
        "connection": value,
    }


def remove_link(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "remove_connection", "id": value["id"], "expected": value}


def set_field(field: str, value: Any, before: Any = None) -> dict[str, Any]:
    return {"type": "set_field", "field": field, "value": value, "beforeValue": before}


class Window:
    """One account's view of one canvas, over gRPC."""

    def __init__(self, client: Client, behalf: Behalf, canvas_id: str = "c") -> None:
        self.client = client
        self.behalf = behalf
        self.canvas_id = canvas_id
        self.stub = CanvasServiceStub(client.channel)

    async def apply(
        self,
        *operations: dict[str, Any] | pb.Operation,
        mutation_id: str = "",
        base: int = 0,
        proofs: list[pb.EditProof] | None = None,
    ) -> pb.ApplyOperationsResponse:
        request = pb.ApplyOperationsRequest(
            canvas_id=self.canvas_id,
            mutation_id=mutation_id or secrets.token_hex(8),
            base_revision=base,
            operations=[
                each if isinstance(each, pb.Operation) else operations_from_json([each])[0]
                for each in operations
            ],
            edit_proofs=proofs,
        )
        return await self.client.call(self.stub.ApplyOperations, request, self.behalf)

    async def read(self) -> dict[str, Any]:
        response = await self.client.call(
            self.stub.GetCanvas, pb.GetCanvasRequest(canvas_id=self.canvas_id), self.behalf
        )
        return {
            **json.loads(response.fields),
            "revision": response.canvas.revision,
            "hash": response.canvas.content_hash,
            "etag": response.canvas.etag,
            "nodes": json.loads(response.nodes),
            "connections": json.loads(response.connections),
        }

    async def delete(self) -> None:
        request = pb.DeleteCanvasRequest(canvas_id=self.canvas_id)
        await self.client.call(self.stub.DeleteCanvas, request, self.behalf)

    async def status(self) -> pb.GetSyncStatusResponse:
        request = pb.GetSyncStatusRequest(canvas_id=self.canvas_id)
        return await self.client.call(self.stub.GetSyncStatus, request, self.behalf)

    async def changes(self, after: int, etag: str = "") -> pb.ListChangesResponse:
        request = pb.ListChangesRequest(
            canvas_id=self.canvas_id, after_revision=after, known_etag=etag
        )
        return await self.client.call(self.stub.ListChanges, request, self.behalf)

    async def acquire(self, node_id: str, session_id: str) -> pb.AcquireEditLeaseResponse:
        request = pb.AcquireEditLeaseRequest(
            canvas_id=self.canvas_id, node_id=node_id, session_id=session_id
        )
        return await self.client.call(self.stub.AcquireEditLease, request, self.behalf)

    async def renew(self, node_id: str, session_id: str, token: str) -> pb.RenewEditLeaseResponse:
        request = pb.RenewEditLeaseRequest(
            canvas_id=self.canvas_id, node_id=node_id, session_id=session_id, token=token
        )
        return await self.client.call(self.stub.RenewEditLease, request, self.behalf)

    async def release(self, node_id: str, session_id: str, token: str) -> None:
        request = pb.ReleaseEditLeaseRequest(
            canvas_id=self.canvas_id, node_id=node_id, session_id=session_id, token=token
        )
        await self.client.call(self.stub.ReleaseEditLease, request, self.behalf)
