"""One account's canvas, as a browser would use it."""

import json
import secrets
from typing import Any

from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from servicekit.client import Client
from servicekit.identity import Behalf

Json = dict[str, Any]


def placeholder(node_id: str, **metadata: Any) -> Json:
    """A node that waits for a picture."""
    return {
        "id": node_id,
        "type": "config",
        "title": "Waiting",
        "position": {"x": 100, "y": 50.5},
        "width": 320,
        "height": 300,
        "metadata": {"status": "loading", "prompt": "a lantern", **metadata},
    }


class Board:
    """A canvas of an account."""

    def __init__(self, client: Client, behalf: Behalf, canvas_id: str) -> None:
        self.client = client
        self.behalf = behalf
        self.canvas_id = canvas_id
        self._stub = CanvasServiceStub(client.channel)

    async def create(self, *nodes: Json) -> None:
        """Makes the canvas with some nodes."""
        canvas = _text({"title": "A canvas", "nodes": list(nodes)})
        await self._apply(pb.Operation(create_canvas=pb.CreateCanvas(canvas=canvas)))

    async def patch(self, node_id: str, patch: Json, before: Json) -> None:
        """Writes fields of a node."""
        operation = pb.PatchNode(
            id=node_id,
            patch={path: _text(value) for path, value in patch.items()},
            before={path: _text(value) for path, value in before.items()},
        )
        await self._apply(pb.Operation(patch_node=operation))

    async def remove(self, node: Json) -> None:
        """Takes a node away."""
        operation = pb.RemoveNode(id=node["id"], expected=_text(node))
        await self._apply(pb.Operation(remove_node=operation))

    async def delete(self) -> None:
        """Deletes the canvas."""
        request = pb.DeleteCanvasRequest(canvas_id=self.canvas_id)
        await self.client.call(self._stub.DeleteCanvas, request, self.behalf)

    async def nodes(self) -> list[Json]:
        """All nodes in creation order."""
        request = pb.GetCanvasRequest(canvas_id=self.canvas_id)
        response = await self.client.call(self._stub.GetCanvas, request, self.behalf)
        nodes: list[Json] = json.loads(response.nodes)
        return nodes

    async def revision(self) -> int:
        """How often the canvas has been changed."""
        request = pb.GetCanvasRequest(canvas_id=self.canvas_id)
        response = await self.client.call(self._stub.GetCanvas, request, self.behalf)
        return response.canvas.revision

    async def _apply(self, operation: pb.Operation) -> None:
        request = pb.ApplyOperationsRequest(
            canvas_id=self.canvas_id, mutation_id=secrets.token_hex(8), operations=[operation]
        )
        await self.client.call(self._stub.ApplyOperations, request, self.behalf)


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()
