"""What the end of a job does to its canvas, given the nodes that are there (GN10, GN13, GN25)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.generation.domain.jobs import Output, Target

GAP = 40
# The size of a picture on a canvas that was not given one.
DEFAULT_WIDTH, DEFAULT_HEIGHT = 720, 405

# What a client may keep in a node can be too large to be added up.
MAX_COORDINATE = 1e9

Node = Mapping[str, Any]
Nodes = Mapping[str, Node]


@dataclass(frozen=True)
class PatchNode:
    """Writes fields of a node by path; `before` holds what was read there."""

    node_id: str
    patch: Mapping[str, Any]
    before: Mapping[str, Any]


@dataclass(frozen=True)
class CreateNode:
    """Adds a node."""

    node: Node


Edit = PatchNode | CreateNode


@dataclass(frozen=True)
class Result:
    """What a job made. `at` is when it was made, in RFC 3339."""

    job_id: str
    title: str
    prompt: str
    outputs: Sequence[Output]
    at: str


def nodes_to_read(job_id: str, node_id: str | None, outputs: int) -> list[str]:
    """The ids of the nodes that decide what happens to the canvas."""
    created = [_node_id(job_id, number) for number in range(1, outputs + 1)]
    return created if node_id is None else [node_id, *created]


def place(result: Result, target: Target, nodes: Nodes) -> list[Edit]:
    """Makes the placeholder the result, or new nodes where there never was one.

    A placeholder that is gone, or bound to another task, means that nobody waits here any more:
    then nothing is put on the canvas. Title, place and size of a placeholder stay the user's.
    """
    if target.node_id is None:
        return _created(result, 0, target.position.x, target.position.y, {}, nodes)
    placeholder = nodes.get(target.node_id)
    if placeholder is None or not _waits_for(result.job_id, placeholder):
        return []
    main = result.outputs[0]
    patch = {
        "type": "image",
        **{f"metadata.{name}": value for name, value in _media(result, main).items()},
        "metadata.errorDetails": None,
    }
    x, y = _coordinates(placeholder)
    width, _ = _size(placeholder, main)
    return [
        _patched(target.node_id, placeholder, patch),
        *_created(result, 1, x + width + GAP, y, placeholder, nodes),
    ]


def show_end(job_id: str, node_id: str, nodes: Nodes, members: Node) -> list[Edit]:
    """Writes members of the placeholder's metadata, if it still waits for this job."""
    placeholder = nodes.get(node_id)
    if placeholder is None or not _waits_for(job_id, placeholder) or _is_made(job_id, placeholder):
        return []
    patch = {f"metadata.{name}": value for name, value in members.items()}
    return [_patched(node_id, placeholder, {**patch, "metadata.taskId": job_id})]


def _is_made(job_id: str, node: Node) -> bool:
    """Whether the node shows what this job made."""
    metadata = node.get("metadata")
    if not isinstance(metadata, dict):
        return False
    return (metadata.get("taskId"), metadata.get("status")) == (job_id, "success")


def _waits_for(job_id: str, node: Node) -> bool:
    metadata = node.get("metadata")
    if metadata is None:
        return True
    # What is not an object has no place for a result.
    return isinstance(metadata, dict) and metadata.get("taskId") in (None, "", job_id)


def _patched(node_id: str, node: Node, patch: Mapping[str, Any]) -> PatchNode:
    before = {path: _read(node, path) for path in patch}
    # What stands already is asserted only: the binding too, so that a node that another task has
    # taken over in the meantime is a conflict.
    changed = {path: value for path, value in patch.items() if value != before[path]}
    return PatchNode(node_id, changed, before)


def _read(node: Node, path: str) -> Any:
    name, _, rest = path.partition(".")
    member = node.get(name)
    return member if not rest or member is None else member.get(rest)


def _created(
    result: Result, first: int, x: float, y: float, beside: Node, nodes: Nodes
) -> list[Edit]:
    """New nodes for the outputs from `first` on, in a row; those that are there already stay."""
    edits: list[Edit] = []
    for number, output in enumerate(result.outputs[first:], first + 1):
        width, height = _size(beside, output)
        node = {
            "id": _node_id(result.job_id, number),
            "type": "image",
            "title": result.title,
            "position": {"x": x, "y": y},
            "width": width,
            "height": height,
            "metadata": {"prompt": result.prompt, **_media(result, output)},
        }
        if node["id"] not in nodes:
            edits.append(CreateNode(node))
        x += width + GAP
    return edits


def _media(result: Result, output: Output) -> dict[str, Any]:
    return {
        "status": "success",
        "storageKey": f"resource:{output.resource_id}",
        "assetId": output.asset_id,
        "mimeType": output.mime_type,
        "naturalWidth": output.width,
        "naturalHeight": output.height,
        "taskId": result.job_id,
        "taskStatus": "succeeded",
        "taskUpdatedAt": result.at,
    }


def _node_id(job_id: str, number: int) -> str:
    return f"{job_id}-{number}"


def _coordinates(node: Node) -> tuple[float, float]:
    position = node.get("position")
    members = position if isinstance(position, dict) else {}
    return _number(members.get("x"), 0), _number(members.get("y"), 0)


def _size(node: Node, output: Output) -> tuple[float, float]:
    """The node's own size, or else the output's, scaled to fit the default."""
    scale = min(DEFAULT_WIDTH / output.width, DEFAULT_HEIGHT / output.height)
    return (
        _number(node.get("width"), round(output.width * scale, 2)),
        _number(node.get("height"), round(output.height * scale, 2)),
    )


def _number(value: Any, otherwise: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= MAX_COORDINATE else otherwise
