"""The canvases that results go to, kept by the canvas service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from servicekit.client import Client
from servicekit.errors import NotFound
from servicekit.identity import Behalf
from servicekit.strictjson import dumps, loads
from services.generation.domain.placement import CreateNode, Edit, Node, PatchNode


@dataclass(frozen=True)
class Seen:
    """Some nodes of a canvas by id, all read at one revision."""

    revision: int
    nodes: Mapping[str, Node]


class Canvases:
    """The canvases of all accounts; every method acts for one of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stub = CanvasServiceStub(client.channel)

    async def nodes(self, account_id: str, canvas_id: str, node_ids: Sequence[str]) -> Seen | None:
        """Those of the nodes that are there; None if the canvas is gone."""
        request = canvas_pb2.BatchGetNodesRequest(canvas_id=canvas_id, node_ids=node_ids)
        try:
            response = await self._client.call(
                self._stub.BatchGetNodes, request, Behalf(account_id=account_id)
            )
        except NotFound:
            return None
        nodes = [loads(text) for text in response.nodes]
        return Seen(response.revision, {node["id"]: node for node in nodes})

    async def apply(
        self,
        account_id: str,
        canvas_id: str,
        mutation_id: str,
        edits: Sequence[Edit],
        *,
        base_revision: int,
    ) -> None:
        """Applies the edits, once for each mutation id. Raises what the canvas refuses them for."""
        request = canvas_pb2.ApplyOperationsRequest(
            canvas_id=canvas_id,
            mutation_id=mutation_id,
            base_revision=base_revision,
            operations=map(operation_from_edit, edits),
        )
        await self._client.call(self._stub.ApplyOperations, request, Behalf(account_id=account_id))


def operation_from_edit(edit: Edit) -> canvas_pb2.Operation:
    """An edit as a message."""
    match edit:
        case PatchNode():
            return canvas_pb2.Operation(
                patch_node=canvas_pb2.PatchNode(
                    id=edit.node_id, patch=_texts(edit.patch), before=_texts(edit.before)
                )
            )
        case CreateNode():
            node = dumps(edit.node).encode()
            return canvas_pb2.Operation(create_node=canvas_pb2.CreateNode(node=node))


def _texts(values: Mapping[str, object]) -> dict[str, bytes]:
    return {path: dumps(value).encode() for path, value in values.items()}
