"""The eight operations as values: well-formed once made, and what they touch."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from services.canvas.domain.failures import InvalidOperation
from services.canvas.domain.values import (
    MAX_DEPTH,
    check_depth,
    check_no_inline_media,
    check_paths,
    segments,
)

MAX_ID_LENGTH = 200
MAX_TITLE_LENGTH = 1_000
FIELDS = frozenset(
    {
        "title",
        "projectId",
        "chatSessions",
        "activeChatId",
        "starterMode",
        "appearance",
        "backgroundMode",
        "showImageInfo",
        "directorScenes",
        "timeline",
        "workspaceMode",
    }
)

_CANVAS_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")

Object = dict[str, Any]


@dataclass(frozen=True)
class CreateCanvas:
    """Makes the canvas, only as the first operation."""

    fields: Object
    nodes: list[Object]
    connections: list[Object]

    def __post_init__(self) -> None:
        if "title" not in self.fields:
            raise InvalidOperation("A canvas needs a title.", path="title")
        for name, value in self.fields.items():
            _check_field(name, value)
        for kind, items, check in (
            ("node", self.nodes, check_node),
            ("connection", self.connections, check_connection),
        ):
            for item in items:
                check(item)
            ids = [item["id"] for item in items]
            if len(set(ids)) != len(ids):
                raise InvalidOperation(f"A {kind} id appears twice.", path=f"{kind}s")

    def payload(self) -> Object:
        """The operation as JSON, for the digest and the change log."""
        canvas = {**self.fields, "nodes": self.nodes, "connections": self.connections}
        return {"type": "create_canvas", "canvas": canvas}

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        fields = {name: kept_field(name, value) for name, value in self.fields.items()}
        return replace(self, fields=fields).payload()


@dataclass(frozen=True)
class CreateNode:
    """Adds a node."""

    node: Object

    def __post_init__(self) -> None:
        check_node(self.node)

    def payload(self) -> Object:
        """The operation as JSON."""
        return {"type": "create_node", "node": self.node}

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return self.payload()


@dataclass(frozen=True)
class PatchNode:
    """Writes fields of a node."""

    node_id: str
    patch: Object
    before: Object = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id("node", self.node_id)
        if not self.patch and not self.before:
            raise InvalidOperation("The patch writes nothing and asserts nothing.", path="patch")
        check_paths(list(self.patch))
        for path, value in self.patch.items():
            names = segments(path)
            if names[0] == "id":
                raise InvalidOperation("The id of a node cannot be written.", path=path)
            if path == "type" and not _is_name(value):
                raise InvalidOperation("The type of a node is text and not empty.", path=path)
            check_depth(value, path, limit=MAX_DEPTH - len(names))
            check_no_inline_media(value, path)
        for path in self.before:
            segments(path)

    def payload(self) -> Object:
        """The operation as JSON."""
        return {
            "type": "patch_node",
            "id": self.node_id,
            "patch": self.patch,
            "before": self.before,
        }

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return {"type": "patch_node", "id": self.node_id, "patch": self.patch}


@dataclass(frozen=True)
class RemoveNode:
    """Takes a node away, and its connections."""

    node_id: str
    expected: Object

    def __post_init__(self) -> None:
        check_id("node", self.node_id)
        _check_object("expected", self.expected)

    def payload(self) -> Object:
        """The operation as JSON."""
        return {"type": "remove_node", "id": self.node_id, "expected": self.expected}

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return {"type": "remove_node", "id": self.node_id}


@dataclass(frozen=True)
class CreateConnection:
    """Adds a connection between two nodes that exist."""

    connection: Object

    def __post_init__(self) -> None:
        check_connection(self.connection)

    def payload(self) -> Object:
        """The operation as JSON."""
        return {"type": "create_connection", "connection": self.connection}

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return self.payload()


@dataclass(frozen=True)
class UpdateConnection:
    """Replaces a connection."""

    connection_id: str
    expected: Object
    connection: Object

    def __post_init__(self) -> None:
        check_id("connection", self.connection_id)
        _check_object("expected", self.expected)
        check_connection(self.connection)
        if self.connection["id"] != self.connection_id:
            raise InvalidOperation("The id of a connection cannot be written.", path="id")

    def payload(self) -> Object:
        """The operation as JSON."""
        return {
            "type": "update_connection",
            "id": self.connection_id,
            "expected": self.expected,
            "connection": self.connection,
        }

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return {
            "type": "update_connection",
            "id": self.connection_id,
            "connection": self.connection,
        }


@dataclass(frozen=True)
class RemoveConnection:
    """Takes a connection away."""

    connection_id: str
    expected: Object

    def __post_init__(self) -> None:
        check_id("connection", self.connection_id)
        _check_object("expected", self.expected)

    def payload(self) -> Object:
        """The operation as JSON."""
        return {
            "type": "remove_connection",
            "id": self.connection_id,
            "expected": self.expected,
        }

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return {"type": "remove_connection", "id": self.connection_id}


@dataclass(frozen=True)
class SetField:
    """Writes a top-level field of the canvas; None takes it away."""

    name: str
    value: Any
    before: Any

    def __post_init__(self) -> None:
        _check_field(self.name, self.value)

    def payload(self) -> Object:
        """The operation as JSON."""
        return {
            "type": "set_field",
            "field": self.name,
            "value": self.value,
            "beforeValue": self.before,
        }

    def effect(self) -> Object:
        """What it does, without what it was compared with."""
        return {
            "type": "set_field",
            "field": self.name,
            "value": kept_field(self.name, self.value),
        }


Edit = (
    CreateCanvas
    | CreateNode
    | PatchNode
    | RemoveNode
    | CreateConnection
    | UpdateConnection
    | RemoveConnection
    | SetField
)


@dataclass(frozen=True)
class Touched:
    """What a request needs to read: objects by id, and nodes that only have to exist."""

    nodes: frozenset[str]
    connections: frozenset[str]
    ends: frozenset[str]
    removed_nodes: frozenset[str]
    written_nodes: frozenset[str]


def touched(edits: Iterable[Edit]) -> Touched:
    """What edits touch. `written_nodes` are those that are patched: their leases matter."""
    nodes: set[str] = set()
    connections: set[str] = set()
    ends: set[str] = set()
    removed: set[str] = set()
    written: set[str] = set()
    for edit in edits:
        match edit:
            case CreateNode(node=node):
                nodes.add(node["id"])
            case PatchNode(node_id=node_id):
                nodes.add(node_id)
                written.add(node_id)
            case RemoveNode(node_id=node_id):
                nodes.add(node_id)
                removed.add(node_id)
            case CreateConnection(connection=connection) | UpdateConnection(connection=connection):
                connections.add(connection["id"])
                ends.update(ends_of(connection))
            case RemoveConnection(connection_id=connection_id):
                connections.add(connection_id)
    return Touched(
        nodes=frozenset(nodes),
        connections=frozenset(connections),
        ends=frozenset(ends - nodes),
        removed_nodes=frozenset(removed),
        written_nodes=frozenset(written),
    )


def kept_field(name: str, value: Any) -> Any:
    """The value of a top-level field as it is kept: a title is trimmed."""
    return value.strip() if name == "title" and isinstance(value, str) else value


def ends_of(connection: Object) -> tuple[str, str]:
    """The ids of the two nodes that a connection joins."""
    return connection["fromNodeId"], connection["toNodeId"]


def check_canvas_id(canvas_id: str) -> None:
    """Raises `InvalidOperation` unless the id is 1 to 80 of letters, digits, `-` and `_`."""
    if not _CANVAS_ID.fullmatch(canvas_id):
        raise InvalidOperation("A canvas id is 1 to 80 of letters, digits, - and _.", path="id")


def check_id(kind: str, object_id: Any) -> None:
    """Raises `InvalidOperation` unless the id is text of 1 to 200 characters."""
    if not _is_name(object_id):
        raise InvalidOperation(
            f"The id of a {kind} is text of 1 to {MAX_ID_LENGTH} characters.", path="id"
        )


def check_node(node: Object) -> None:
    """Raises `InvalidOperation` or `InlineMedia` unless the value can be a node."""
    _check_object("node", node)
    check_id("node", node.get("id"))
    if not _is_name(node.get("type")):
        raise InvalidOperation("A node needs a type.", path="type")
    check_no_inline_media(node)


def check_connection(connection: Object) -> None:
    """Raises `InvalidOperation` or `InlineMedia` unless the value can be a connection."""
    _check_object("connection", connection)
    check_id("connection", connection.get("id"))
    for end in ("fromNodeId", "toNodeId"):
        if not _is_name(connection.get(end)):
            raise InvalidOperation(f"A connection needs {end}.", path=end)
    check_no_inline_media(connection)


def _check_field(name: str, value: Any) -> None:
    if name not in FIELDS:
        raise InvalidOperation(f"The field {name!r} cannot be written.", path=name)
    if name == "title" and not _is_title(value):
        raise InvalidOperation(
            f"A title is text of 1 to {MAX_TITLE_LENGTH} characters that is not blank.", path=name
        )
    check_no_inline_media(value, name)


def _check_object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidOperation(f"{name} must be a JSON object.", path=name)


def _is_title(value: Any) -> bool:
    # Lists show it, up to 200 of them in one message.
    return isinstance(value, str) and 0 < len(value.strip()) <= MAX_TITLE_LENGTH


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH
