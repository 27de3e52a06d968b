"""The operations of a canvas against what a person would say they do (CV1 to CV8)."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from servicekit.errors import Failure
from servicekit.strictjson import dumps, loads
from services.canvas.domain.canonical import canonical, object_hash
from services.canvas.domain.edits import (
    CreateConnection,
    CreateNode,
    Edit,
    PatchNode,
    RemoveConnection,
    RemoveNode,
    SetField,
    UpdateConnection,
    ends_of,
    touched,
)
from services.canvas.domain.operations import Change, Head, Objects, Stored, apply
from services.canvas.domain.values import equal

IDS = st.sampled_from(["a", "b", "c"])
LINKS = st.sampled_from(["l", "m"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", 1.5])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_canonical_text_reads_back_as_an_equal_value(value: Any) -> None:
    """CV3"""
    assert equal(loads(canonical(value)), value)


@given(JSON, JSON)
def test_equal_values_have_the_same_canonical_text_and_no_others(left: Any, right: Any) -> None:
    """CV3"""
    without = _without_nulls(left), _without_nulls(right)

    assert equal(left, right) == (canonical(without[0]) == canonical(without[1]))


def _without_nulls(value: Any) -> Any:
    """An absent member equals one that is null; nulls in arrays count."""
    if isinstance(value, dict):
        return {key: _without_nulls(it) for key, it in value.items() if it is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


class Model:
    """A canvas as a person would keep it: lists of whole objects."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.links: list[dict[str, Any]] = []
        self.fields: dict[str, Any] = {"title": "T"}

    def apply(self, edit: Edit) -> bool:
        """Applies an edit; whether it can be."""
        match edit:
            case CreateNode(node=node):
                if self._find(self.nodes, node["id"]) is not None:
                    return False
                self.nodes.append(node)
            case PatchNode(node_id=node_id, patch=patch, before=before):
                at = self._find(self.nodes, node_id)
                if at is None:
                    return False
                node = copy.deepcopy(self.nodes[at])
                if any(
                    not equal(_get(node, path), before.get(path)) for path in {**patch, **before}
                ):
                    return False
                for path, value in patch.items():
                    _set(node, path, value)
                self.nodes[at] = node
            case RemoveNode(node_id=node_id, expected=expected):
                at = self._find(self.nodes, node_id)
                if at is None or not equal(self.nodes[at], expected):
                    return False
                del self.nodes[at]
                self.links = [link for link in self.links if node_id not in ends_of(link)]
            case CreateConnection(connection=link):
                if self._find(self.links, link["id"]) is not None or not self._joins(link):
                    return False
                self.links.append(link)
            case UpdateConnection(connection_id=link_id, expected=expected, connection=link):
                at = self._find(self.links, link_id)
                if at is None or not equal(self.links[at], expected) or not self._joins(link):
                    return False
                self.links[at] = link
            case RemoveConnection(connection_id=link_id, expected=expected):
                at = self._find(self.links, link_id)
                if at is None or not equal(self.links[at], expected):
                    return False
                del self.links[at]
            case SetField(name=name, value=value, before=before):
                if not equal(self.fields.get(name), before):
                    return False
                self.fields = {key: it for key, it in self.fields.items() if key != name}
                if value is not None:
                    self.fields[name] = value
        return True

    def _joins(self, link: dict[str, Any]) -> bool:
        return all(self._find(self.nodes, end) is not None for end in ends_of(link))

    @staticmethod
    def _find(items: list[dict[str, Any]], item_id: str) -> int | None:
        return next((at for at, item in enumerate(items) if item["id"] == item_id), None)


def _get(node: dict[str, Any], path: str) -> Any:
    here: Any = node
    for name in path.split("."):
        here = (here or {}).get(name)
    return here


def _set(node: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        node[name] = node.get(name) or {}
        node = node[name]
    node[last] = value


PATHS = st.sampled_from(["title", "metadata.prompt", "metadata.deep.er"])


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    node_id, other, link_id = draw(IDS), draw(IDS), draw(LINKS)
    node = {"id": node_id, "type": "t", "title": draw(SCALARS)}
    link = {"id": link_id, "fromNodeId": node_id, "toNodeId": other}
    paths = draw(st.lists(PATHS, unique=True, min_size=1))
    choices: list[Edit] = [
        CreateNode(node),
        PatchNode(
            node_id,
            {path: draw(SCALARS) for path in paths},
            {path: draw(SCALARS) for path in paths if draw(st.booleans())},
        ),
        RemoveNode(node_id, node),
        CreateConnection(link),
        UpdateConnection(link_id, link, {**link, "label": draw(SCALARS)}),
        RemoveConnection(link_id, link),
        SetField("timeline", draw(SCALARS), draw(SCALARS)),
    ]
    return draw(st.sampled_from(choices))


class Kept:
    """A canvas as the store keeps it."""

    def __init__(self) -> None:
        text = canonical("T")
        self.head = Head(
            revision=1,
            fields={"title": "T"},
            node_count=0,
            next_order=0,
            size_bytes=len(text),
            content_hash=object_hash("field", "title", text),
        )
        self.nodes: dict[str, Stored] = {}
        self.links: dict[str, Stored] = {}

    def gathered(self, request: list[Edit]) -> Objects:
        """Only what the store would read for a request."""
        wanted = touched(request)
        links = {
            link_id: stored
            for link_id, stored in self.links.items()
            if link_id in wanted.connections
            or wanted.removed_nodes.intersection(ends_of(stored.value))
        }
        return Objects(
            nodes={key: it for key, it in self.nodes.items() if key in wanted.nodes},
            connections=links,
            ends=wanted.ends & self.nodes.keys(),
        )

    def save(self, change: Change) -> None:
        self.head = change.head
        for kept, changes in ((self.nodes, change.nodes), (self.links, change.connections)):
            for object_id, stored in changes.items():
                kept.pop(object_id, None)
                if stored is not None:
                    kept[object_id] = stored


def in_order(kept: dict[str, Stored]) -> list[Any]:
    return [stored.value for stored in sorted(kept.values(), key=lambda stored: stored.order)]


@given(st.lists(st.lists(edits(), min_size=1, max_size=5), max_size=8))
def test_requests_do_all_or_nothing_of_what_they_say(requests: list[list[Edit]]) -> None:
    """CV1, CV6, CV8"""
    kept, model = Kept(), Model()
    for request in requests:
        trial = copy.deepcopy(model)
        fits = all(trial.apply(edit) for edit in request)
        try:
            kept.save(apply("c", kept.head, kept.gathered(request), request))
            applied = True
        except Failure:
            applied = False

        assert applied == fits
        model = trial if fits else model
        assert dumps(in_order(kept.nodes)) == dumps(model.nodes)
        assert dumps(in_order(kept.links)) == dumps(model.links)
        assert kept.head.fields == model.fields


@given(st.lists(st.lists(edits(), min_size=1, max_size=5), max_size=8))
def test_the_sums_of_the_head_equal_a_recount(requests: list[list[Edit]]) -> None:
    """CV4, CV9"""
    kept = Kept()
    for request in requests:
        try:
            kept.save(apply("c", kept.head, kept.gathered(request), request))
        except Failure:
            continue

    hashed, size = 0, 0
    parts = [("node", key, it.text) for key, it in kept.nodes.items()]
    parts += [("connection", key, it.text) for key, it in kept.links.items()]
    parts += [("field", name, canonical(value)) for name, value in kept.head.fields.items()]
    for kind, object_id, text in parts:
        hashed ^= object_hash(kind, object_id, text)
        size += len(text.encode())
    assert kept.head.content_hash == hashed
    assert kept.head.size_bytes == size
    assert kept.head.node_count == len(kept.nodes)
