"""The operations of a canvas against what a person would say they do (CV1 to CV8)."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from servicekit.errors import Failure
from servicekit.strictjson import dumps, loads
from services.canvas.domain.canonical import canonical, object_hash
from services.canvas.domain.edits import Edit, ends_of, touched
from services.canvas.domain.operations import Canvas, Change, Head, Stored, apply
from services.canvas.domain.values import equal
from tests.support.canvas_model import Model, edits

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

    def gathered(self, request: list[Edit]) -> Canvas:
        """Only what the store would read for a request."""
        wanted = touched(request)
        links = {
            link_id: stored
            for link_id, stored in self.links.items()
            if link_id in wanted.connections
            or wanted.removed_nodes.intersection(ends_of(stored.value))
        }
        return Canvas(
            canvas_id="c",
            head=self.head,
            nodes={key: it for key, it in self.nodes.items() if key in wanted.nodes},
            connections=links,
            ends=wanted.ends & self.nodes.keys(),
        )

    def save(self, change: Change) -> None:
        self.head = change.head
        for kept, changes in (
            (self.nodes, change.written.nodes),
            (self.links, change.written.connections),
        ):
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
            kept.save(apply(kept.gathered(request), request, check=lambda _: None))
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
            kept.save(apply(kept.gathered(request), request, check=lambda _: None))
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
