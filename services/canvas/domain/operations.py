"""Applies the operations of one request, all or none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.canvas.domain.canonical import canonical, object_hash
from services.canvas.domain.convergence import TASK_TIME, is_observation, later
from services.canvas.domain.edits import (
    CreateCanvas,
    CreateConnection,
    CreateNode,
    Edit,
    Object,
    PatchNode,
    RemoveConnection,
    RemoveNode,
    SetField,
    UpdateConnection,
    ends_of,
    kept_field,
)
from services.canvas.domain.failures import (
    CanvasTooLarge,
    FieldConflict,
    InvalidOperation,
    ObjectMissing,
    located,
    shown,
)
from services.canvas.domain.values import equal, read, written

MAX_OPERATIONS = 500
MAX_NODES = 5_000
MAX_CANVAS_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Stored:
    """A node or connection as it is kept: canonical text, its hash, its place in the order."""

    value: Object
    text: str
    hash: int
    order: int

    @property
    def size_bytes(self) -> int:
        """The length of its text in UTF-8."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Head:
    """A canvas without its nodes and connections.

    `fields` are the top-level fields that are set, `next_order` the place of the next object,
    `size_bytes` the length of all stored texts, `content_hash` as CV4 says.
    """

    revision: int
    fields: Object
    node_count: int
    next_order: int
    size_bytes: int
    content_hash: int


@dataclass(frozen=True)
class Canvas:
    """What is known of a canvas while requests are applied to it: what they touch.

    `head` is None where there is no canvas. An object that is None is not there. `connections`
    also holds those of nodes to be removed; `ends` are ids of nodes that only have to exist.
    """

    canvas_id: str
    head: Head | None
    nodes: Mapping[str, Stored | None]
    connections: Mapping[str, Stored | None]
    ends: frozenset[str]

    def after(self, change: "Change") -> "Canvas":
        """The canvas with a change made."""
        return Canvas(
            canvas_id=self.canvas_id,
            head=change.head,
            nodes={**self.nodes, **change.written.nodes},
            connections={**self.connections, **change.written.connections},
            ends=self.ends,
        )


@dataclass(frozen=True)
class Written:
    """The objects that were written, by id; None for what was taken away."""

    nodes: Mapping[str, Stored | None]
    connections: Mapping[str, Stored | None]

    def and_then(self, change: "Change") -> "Written":
        """What was written before, and by a change after it."""
        return Written(
            nodes={**self.nodes, **change.written.nodes},
            connections={**self.connections, **change.written.connections},
        )


NOTHING_WRITTEN = Written(nodes={}, connections={})


@dataclass(frozen=True)
class Change:
    """What a request does: the new head, and the objects written.

    `effective` is what happened, as JSON: what others apply to what they have (CV21).
    """

    head: Head
    written: Written
    effective: list[Object]


def apply(canvas: Canvas, edits: list[Edit], *, check: Callable[[Edit], None]) -> Change:
    """What the edits make of a canvas. `check` is asked of each before it is applied.

    Raises the failure of the first edit that cannot be applied, saying which; then nothing of
    the request may be stored.
    """
    draft = _Draft(canvas)
    with located() as place:
        for place.index, edit in enumerate(edits):
            check(edit)
            draft.apply(place.index, edit)
    return draft.change()


@dataclass
class _Draft:
    """The canvas in the middle of a request."""

    before: Canvas
    head: Head | None = field(init=False)
    nodes: dict[str, Stored | None] = field(default_factory=dict)
    connections: dict[str, Stored | None] = field(default_factory=dict)
    effective: list[Object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.head = self.before.head

    def apply(self, index: int, edit: Edit) -> None:
        if self.head is None and not isinstance(edit, CreateCanvas):
            raise ObjectMissing("canvas", self.before.canvas_id)
        match edit:
            case CreateCanvas():
                self._create_canvas(index, edit)
            case CreateNode():
                self._create_node(edit.node)
            case PatchNode():
                edit = self._patch_node(edit)
            case RemoveNode():
                self._remove_node(edit)
            case CreateConnection():
                self._create_connection(edit.connection)
            case UpdateConnection():
                self._update_connection(edit)
            case RemoveConnection():
                self._remove_connection(edit)
            case SetField():
                self._set_field(edit)
        self.effective.append(edit.effect())

    def change(self) -> Change:
        head = self.head
        assert head is not None
        return Change(
            head=Head(
                revision=head.revision + 1,
                fields=head.fields,
                node_count=head.node_count,
                next_order=head.next_order,
                size_bytes=head.size_bytes,
                content_hash=head.content_hash,
            ),
            written=Written(self.nodes, self.connections),
            effective=self.effective,
        )

    def _create_canvas(self, index: int, edit: CreateCanvas) -> None:
        if index > 0:
            raise InvalidOperation("create_canvas can only be the first operation.")
        if self.head is not None:
            raise FieldConflict("The canvas exists.", object_id=self.before.canvas_id)
        self.head = Head(
            revision=0, fields={}, node_count=0, next_order=0, size_bytes=0, content_hash=0
        )
        for name, value in edit.fields.items():
            self._write_field(name, value)
        for node in edit.nodes:
            self._create_node(node)
        for connection in edit.connections:
            self._create_connection(connection)

    def _create_node(self, node: Object) -> None:
        node_id = node["id"]
        present = self._node(node_id)
        if present is not None:
            raise FieldConflict(
                f"A node {node_id!r} exists.", object_id=node_id, **shown(present.value)
            )
        self._write("node", node_id, None, node)

    def _patch_node(self, edit: PatchNode) -> PatchNode:
        """Applies a patch, and answers what it came to."""
        present = self._node(edit.node_id)
        if present is None:
            raise ObjectMissing("node", edit.node_id)
        converges = is_observation(present.value, edit.patch, edit.before)
        targets = dict(edit.patch)
        for path in edit.patch.keys() | edit.before.keys():
            current = read(present.value, path)
            if converges and path == TASK_TIME:
                targets[path] = later(current, edit.patch[path])
            elif converges and path in edit.patch and equal(current, edit.patch[path]):
                continue
            elif not equal(current, edit.before.get(path)):
                raise FieldConflict(
                    f"{path} of the node {edit.node_id!r} is not what it was.",
                    object_id=edit.node_id,
                    path=path,
                    **shown(current),
                )
        value = present.value
        for path, target in targets.items():
            value = written(value, path, target)
        if targets:
            self._write("node", edit.node_id, present, value)
        return replace(edit, patch=targets) if converges else edit

    def _remove_node(self, edit: RemoveNode) -> None:
        present = self._node(edit.node_id)
        if present is None:
            raise ObjectMissing("node", edit.node_id)
        _check_expected("node", edit.node_id, present, edit.expected)
        for connection_id in sorted(self._connections_of(edit.node_id)):
            self._write("connection", connection_id, self._connection(connection_id), None)
        self._write("node", edit.node_id, present, None)

    def _create_connection(self, connection: Object) -> None:
        connection_id = connection["id"]
        present = self._connection(connection_id)
        if present is not None:
            raise FieldConflict(
                f"A connection {connection_id!r} exists.",
                object_id=connection_id,
                **shown(present.value),
            )
        self._check_ends(connection)
        self._write("connection", connection_id, None, connection)

    def _update_connection(self, edit: UpdateConnection) -> None:
        present = self._connection(edit.connection_id)
        if present is None:
            raise ObjectMissing("connection", edit.connection_id)
        _check_expected("connection", edit.connection_id, present, edit.expected)
        self._check_ends(edit.connection)
        self._write("connection", edit.connection_id, present, edit.connection)

    def _remove_connection(self, edit: RemoveConnection) -> None:
        present = self._connection(edit.connection_id)
        if present is None:
            raise ObjectMissing("connection", edit.connection_id)
        _check_expected("connection", edit.connection_id, present, edit.expected)
        self._write("connection", edit.connection_id, present, None)

    def _set_field(self, edit: SetField) -> None:
        assert self.head is not None
        current = self.head.fields.get(edit.name)
        if not equal(current, edit.before):
            raise FieldConflict(
                f"The field {edit.name} is not what it was.", path=edit.name, **shown(current)
            )
        self._write_field(edit.name, edit.value)

    def _write_field(self, name: str, value: Any) -> None:
        assert self.head is not None
        fields = {key: member for key, member in self.head.fields.items() if key != name}
        size, hashed = self.head.size_bytes, self.head.content_hash
        if name in self.head.fields:
            text = canonical(self.head.fields[name])
            size -= len(text.encode())
            hashed ^= object_hash("field", name, text)
        if value is not None:
            value = kept_field(name, value)
            text = canonical(value)
            size += len(text.encode())
            hashed ^= object_hash("field", name, text)
            fields[name] = value
        self.head = replace(self.head, fields=fields, size_bytes=size, content_hash=hashed)
        self._check_size()

    def _write(self, kind: str, object_id: str, old: Stored | None, value: Object | None) -> None:
        """Replaces one node or connection, and keeps the head's sums."""
        assert self.head is not None
        new = None
        if value is not None:
            text = canonical(value)
            hashed = object_hash(kind, object_id, text)
            new = Stored(value, text, hashed, old.order if old else self.head.next_order)
        came = (new is not None) - (old is not None)
        head = self.head
        self.head = Head(
            revision=head.revision,
            fields=head.fields,
            node_count=head.node_count + (came if kind == "node" else 0),
            next_order=head.next_order + (1 if came > 0 else 0),
            size_bytes=head.size_bytes
            + (new.size_bytes if new else 0)
            - (old.size_bytes if old else 0),
            content_hash=head.content_hash ^ (new.hash if new else 0) ^ (old.hash if old else 0),
        )
        (self.nodes if kind == "node" else self.connections)[object_id] = new
        if new is not None:
            self._check_size()

    def _check_size(self) -> None:
        assert self.head is not None
        if self.head.node_count > MAX_NODES:
            raise CanvasTooLarge(f"A canvas has at most {MAX_NODES} nodes.")
        if self.head.size_bytes > MAX_CANVAS_BYTES:
            raise CanvasTooLarge(f"A canvas has at most {MAX_CANVAS_BYTES // 2**20} MiB of JSON.")

    def _check_ends(self, connection: Object) -> None:
        for node_id in ends_of(connection):
            if node_id in self.before.ends and node_id not in self.nodes:
                continue
            if self._node(node_id) is None:
                raise ObjectMissing("node", node_id)

    def _node(self, node_id: str) -> Stored | None:
        if node_id in self.nodes:
            return self.nodes[node_id]
        return self.before.nodes.get(node_id)

    def _connection(self, connection_id: str) -> Stored | None:
        if connection_id in self.connections:
            return self.connections[connection_id]
        return self.before.connections.get(connection_id)

    def _connections_of(self, node_id: str) -> set[str]:
        known = self.before.connections.keys() | self.connections.keys()
        return {
            connection_id
            for connection_id in known
            if (connection := self._connection(connection_id)) is not None
            and node_id in ends_of(connection.value)
        }


def _check_expected(kind: str, object_id: str, present: Stored, expected: Object) -> None:
    if not equal(present.value, expected):
        raise FieldConflict(
            f"The {kind} {object_id!r} is not what it was.",
            object_id=object_id,
            **shown(present.value),
        )
