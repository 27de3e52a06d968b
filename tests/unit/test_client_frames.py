"""The frames that a window may send."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.frames import MalformedFrame, PresenceFrame, presence_from_text


def frame(**members: Any) -> str:
    return json.dumps({"type": "presence", "cursor": None, "drag": None, **members})


def box(**members: Any) -> dict[str, Any]:
    return {"id": "n", "x": 0, "y": -1.5, "width": 10, "height": 20, **members}


def test_a_presence_is_read_and_passed_on_without_what_is_unknown() -> None:
    """PR12"""
    text = frame(cursor={"y": 2.5, "x": -1e7, "z": 1}, drag=[box(colour="red")], more={"a": [1]})

    read = presence_from_text(text.encode())

    assert read == PresenceFrame(
        cursor=b'{"x":-10000000.0,"y":2.5}',
        drag=b'[{"id":"n","x":0,"y":-1.5,"width":10,"height":20}]',
    )


@pytest.mark.parametrize("text", ['{"type":"presence"}', frame(), frame(cursor=None)])
def test_what_is_absent_is_null(text: str) -> None:
    """PR12"""
    assert presence_from_text(text.encode()) == PresenceFrame(cursor=b"null", drag=b"null")


def test_a_frame_may_have_100_boxes() -> None:
    """PR12"""
    boxes = frame(drag=[box(id=str(number)) for number in range(100)])

    assert len(json.loads(presence_from_text(boxes.encode()).drag)) == 100


def test_ids_of_any_text_are_passed_on() -> None:
    """PR12"""
    names = ["节" * 200, '"\\\n', "\u2028</script>"]

    read = presence_from_text(frame(drag=[box(id=name) for name in names]).encode())

    assert [each["id"] for each in json.loads(read.drag)] == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"presence"',
        "{}",
        '{"type":"welcome"}',
        '{"type":["presence"]}',
        '{"type":"presence","type":"presence"}',
        '{"type":"presence","cursor":{"x":NaN,"y":0}}',
        '{"type":"presence","cursor":{"x":Infinity,"y":0}}',
        '{"type":"presence","cursor":{"x":1e999,"y":0}}',
        '{"type":"presence","cursor":{"x":' + "9" * 400 + ',"y":0}}',
        '{"type":"presence","cursor":{"x":' + "9" * 5000 + ',"y":0}}',
        '{"type":"presence","more":"\\ud800"}',
        "[" * 8000 + "]" * 8000,
        '{"type":"presence","more":' + "[" * 4000 + "]" * 4000 + "}",
        frame(cursor=[0, 0]),
        frame(cursor=False),
        frame(cursor={"x": 0}),
        frame(cursor={"x": 0, "y": None}),
        frame(cursor={"x": 0, "y": "0"}),
        frame(cursor={"x": 0, "y": True}),
        frame(cursor={"x": 0, "y": 10_000_001}),
        frame(cursor={"x": 0, "y": -1.00001e7}),
        frame(drag={}),
        frame(drag=[None]),
        frame(drag=[[]]),
        frame(drag=[box()] * 101),
        frame(drag=[box(id="")]),
        frame(drag=[box(id="x" * 201)]),
        frame(drag=[box(id=1)]),
        frame(drag=[box(width=None)]),
        frame(drag=[box(height=1e8)]),
        frame(drag=[box(), {"id": "n", "x": 0, "y": 0, "width": 0}]),
    ],
)
def test_anything_else_closes_with_4400(text: str) -> None:
    """PR12"""
    with pytest.raises(MalformedFrame) as caught:
        presence_from_text(text.encode())

    assert caught.value.code == 4400


def test_what_is_not_in_utf_8_is_refused() -> None:
    """PR12"""
    with pytest.raises(MalformedFrame):
        presence_from_text(b'{"type":"presence","more":"\xff"}')


@given(
    number=st.integers(-20_000_000, 20_000_000) | st.floats(allow_nan=False, allow_infinity=False),
    name=st.text(st.characters(codec="utf-8"), max_size=3) | st.just("n" * 201),
    boxes=st.sampled_from([0, 1, 100, 101]),
    lacks=st.sampled_from([None, "cursor", "drag"]),
)
def test_it_makes_no_difference_how_a_page_writes_its_json(
    number: float, name: str, boxes: int, lacks: str | None
) -> None:
    """PR12"""
    members = {"cursor": {"x": number, "y": 0}, "drag": [box(id=name, width=number)] * boxes}
    value = {"type": "presence", **members}
    value.pop(lacks or "", None)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    assert outcome(compact) == outcome(json.dumps(value))


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"presence","cursor":{"x":1,"x":1,"y":0},"drag":null}',
        '{"type":"presence","cursor":null,"cursor":null,"drag":null}',
        '{"type":"presence","cursor":null,"drag":[{"id":"\\u0000","x":1,"y":0,"width":1,"height":1}]}',
        '{"type":"presence","cursor":{"x":true,"y":0},"drag":null}',
    ],
)
def test_what_is_refused_is_refused_as_pages_write_it_too(text: str) -> None:
    """PR12"""
    with pytest.raises(MalformedFrame):
        presence_from_text(text.encode())


def outcome(text: str) -> Any:
    """What a frame tells, or that it is refused."""
    try:
        read = presence_from_text(text.encode())
    except MalformedFrame:
        return None
    return json.loads(read.cursor), json.loads(read.drag)
