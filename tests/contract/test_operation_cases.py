"""The shared cases of operations: input, operations, outcome, for every language."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.operations import operations_from_json
from servicekit.errors import Failure
from services.canvas.domain.canonical import canonical, object_hash
from services.canvas.domain.operations import Canvas, Change, Head, Stored, apply
from services.canvas.domain.values import equal
from services.canvas.rpc import edits_from_proto

CASES = Path(__file__).parent / "cases" / "operations"
WIRE = {
    "operation_index": "operationIndex",
    "object_id": "objectId",
    "object_type": "objectType",
    "current_value": "currentValue",
}


def _cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted(CASES.glob("*.json"))
        for case in json.loads(path.read_text())["cases"]
    ]


def _stored(kind: str, items: list[dict[str, Any]], first: int) -> dict[str, Stored | None]:
    return {
        item["id"]: Stored(
            item, canonical(item), object_hash(kind, item["id"], canonical(item)), first + place
        )
        for place, item in enumerate(items)
    }


def _canvas(before: dict[str, Any]) -> Canvas:
    nodes = _stored("node", before["nodes"], 0)
    links = _stored("connection", before["connections"], len(nodes))
    head = Head(1, before["fields"], len(nodes), len(nodes) + len(links), 0, 0)
    return Canvas("c", head, nodes, links, frozenset())


def _in_order(kept: Any) -> list[Any]:
    there = [stored for stored in kept.values() if stored is not None]
    return [stored.value for stored in sorted(there, key=lambda stored: stored.order)]


def _apply(case: dict[str, Any]) -> tuple[Canvas, Change]:
    canvas = _canvas(case["before"])
    edits = edits_from_proto(operations_from_json(case["operations"]))
    change = apply(canvas, edits, check=lambda _: None)
    return canvas.after(change), change


@pytest.mark.parametrize("case", _cases())
def test_the_outcome_is_the_one_that_is_written_down(case: dict[str, Any]) -> None:
    """CV1, CV2, CV5, CV6, CV7, CV8, CV19"""
    if "refused" in case:
        with pytest.raises(Failure) as caught:
            _apply(case)
        facts = {WIRE.get(name, name): fact for name, fact in caught.value.facts.items()}
        assert {"reason": caught.value.machine_word, **facts} == case["refused"]
        return
    after, _ = _apply(case)

    assert after.head is not None
    assert equal(after.head.fields, case["after"]["fields"])
    assert canonical(_in_order(after.nodes)) == canonical(case["after"]["nodes"])
    assert canonical(_in_order(after.connections)) == canonical(case["after"]["connections"])
