"""What the end of a job does to the nodes of a canvas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.domain.jobs import Output, Position, Target
from services.generation.domain.placement import (
    CreateNode,
    PatchNode,
    Result,
    nodes_to_read,
    place,
    show_end,
)

JOB = "extgen-1"
AT = "2026-11-30T10:00:00.123Z"
WIDE, TALL = (
    Output("rs_1", "as_1", "image/png", 1440, 405),
    Output("rs_2", "as_2", "image/png", 100, 810),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def result(*outputs: Output) -> Result:
    return Result(JOB, "A lantern", "a lantern over a river", outputs, AT)


def test_only_what_changes_is_written_and_all_of_it_is_compared() -> None:
    """GN10"""
    node = {"id": "n", "type": "image", "metadata": {"taskId": JOB, "status": "loading"}}

    (edit,) = place(result(WIDE), Target("n", Position()), {"n": node})

    assert isinstance(edit, PatchNode)
    assert edit.patch["metadata.storageKey"] == "resource:rs_1"
    assert edit.before["metadata.status"] == "loading"
    assert edit.before["metadata.taskId"] == JOB
    assert not edit.patch.keys() & {"type", "metadata.taskId", "metadata.errorDetails"}
    assert not edit.before.keys() & {"title", "position", "width", "height", "metadata"}


def test_a_picture_without_a_size_of_its_own_fits_the_default() -> None:
    """GN10"""
    wide, tall = place(result(WIDE, TALL), Target(None, Position(10, 20)), {})

    assert isinstance(wide, CreateNode)
    assert isinstance(tall, CreateNode)
    assert (wide.node["width"], wide.node["height"]) == (720, 202.5)
    assert (tall.node["width"], tall.node["height"]) == (50, 405)
    assert tall.node["position"] == {"x": 10 + 720 + 40, "y": 20}


def test_nodes_that_are_there_already_are_not_made_again() -> None:
    """GN11"""
    (edit,) = place(result(WIDE, TALL), Target(None, Position()), {f"{JOB}-1": {"id": "x"}})

    assert isinstance(edit, CreateNode)
    assert edit.node["id"] == f"{JOB}-2"


def test_a_placeholder_and_the_nodes_to_be_made_are_read() -> None:
    assert nodes_to_read(JOB, "n", 2) == ["n", f"{JOB}-1", f"{JOB}-2"]
    assert nodes_to_read(JOB, None, 1) == [f"{JOB}-1"]


@pytest.mark.parametrize("task", ["tk_2", "extgen-2", 0, False, [], {}])
def test_a_node_bound_to_anything_else_is_not_ours(task: Any) -> None:
    """GN10"""
    nodes = {"n": {"id": "n", "type": "image", "metadata": {"taskId": task}}}

    assert place(result(WIDE), Target("n", Position()), nodes) == []
    assert show_end(JOB, "n", nodes, {"status": "idle"}) == []


@pytest.mark.parametrize("odd", [10**400, -(10**400), 1.7e308, -1.7e308, "1", True, None])
def test_further_nodes_have_a_place_whatever_the_placeholder_holds(odd: Any) -> None:
    """GN10"""
    node = {"id": "n", "position": {"x": odd, "y": odd}, "width": odd, "height": odd}

    _, second = place(result(WIDE, TALL), Target("n", Position()), {"n": node})

    assert isinstance(second, CreateNode)
    assert second.node["position"] == {"x": 720 + 40, "y": 0}
    assert (second.node["width"], second.node["height"]) == (50, 405)


@given(
    st.dictionaries(
        st.sampled_from(("type", "title", "position", "width", "height", "metadata")) | st.text(),
        JSON | st.fixed_dictionaries({"x": JSON, "y": JSON, "taskId": st.just(JOB)}),
    )
)
def test_any_node_can_be_looked_at(node: dict[str, Any]) -> None:
    """GN10"""
    nodes = {"n": {**node, "id": "n"}}

    edits = place(result(WIDE, TALL), Target("n", Position()), nodes)
    show_end(JOB, "n", nodes, {"status": "idle"})

    assert len(edits) in (0, 2)


def test_a_node_that_shows_the_picture_is_not_marked() -> None:
    """GN11"""
    nodes = {"n": {"id": "n", "metadata": {"taskId": JOB, "status": "success"}}}

    assert show_end(JOB, "n", nodes, {"status": "error"}) == []
