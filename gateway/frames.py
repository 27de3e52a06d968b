"""The frames that a window may send over the realtime channel."""

import re
from typing import Any, NamedTuple

from gateway.sockets import CLOSE_MALFORMED
from servicekit.errors import Invalid
from servicekit.strictjson import NotJson, dumps, loads

# What is larger is not read.
MAX_FRAME_BYTES = 16 * 1024
MAX_DRAGGED = 100
MAX_ID_LENGTH = 200
MAX_COORDINATE = 1e7
_POINT = ("x", "y")
_BOX = ("x", "y", "width", "height")


class MalformedFrame(Invalid):
    """A frame that the protocol does not know: the socket is closed with 4400."""

    reason = "malformed_frame"
    code = CLOSE_MALFORMED


class PresenceFrame(NamedTuple):
    """Where a window's cursor is and what it drags, as JSON that can be passed on."""

    cursor: bytes
    drag: bytes


# As pages write it, all but the rarest of it: what is so needs no parser, nor to be written anew.
# No key is there twice, no number has an exponent or reaches 1e7, no id has an escape.
_NUMBER = r"-?(?:0|[1-9][0-9]{0,6})(?:\.[0-9]{1,20})?"
_PLAIN_ID = rf'"[ !#-\[\]-~]{{1,{MAX_ID_LENGTH}}}"'
_PLAIN_BOX = (
    rf'\{{"id":{_PLAIN_ID},"x":{_NUMBER},"y":{_NUMBER},"width":{_NUMBER},"height":{_NUMBER}\}}'
)
_PLAIN_CURSOR = rf'\{{"x":{_NUMBER},"y":{_NUMBER}\}}'
_PLAIN_DRAG = rf"\[{_PLAIN_BOX}(?:,{_PLAIN_BOX}){{0,{MAX_DRAGGED - 1}}}\]"
_PLAIN = re.compile(
    rf'\{{"type":"presence","cursor":(null|{_PLAIN_CURSOR}),"drag":(null|{_PLAIN_DRAG})\}}'.encode()
)


def presence_from_text(text: bytes) -> PresenceFrame:
    """The presence that a text frame tells.

    An absent cursor or drag is none; members that the protocol does not know are left out.
    Raises `MalformedFrame`.
    """
    plain = _PLAIN.fullmatch(text)
    if plain is not None:
        return PresenceFrame(*plain.groups())
    try:
        frame = loads(text)
    except NotJson as error:
        raise MalformedFrame(error.detail) from None
    if not isinstance(frame, dict) or frame.get("type") != "presence":
        raise MalformedFrame('A frame is an object of the type "presence".')
    cursor, drag = frame.get("cursor"), frame.get("drag")
    return PresenceFrame(
        cursor=b"null" if cursor is None else dumps(_numbers(cursor, _POINT, "cursor")).encode(),
        drag=b"null" if drag is None else dumps(_dragged(drag)).encode(),
    )


def _dragged(drag: Any) -> list[dict[str, Any]]:
    if not isinstance(drag, list) or len(drag) > MAX_DRAGGED:
        raise MalformedFrame(f"drag is null or a list of at most {MAX_DRAGGED} boxes.")
    return [_box(box, f"drag.{index}") for index, box in enumerate(drag)]


def _box(box: Any, path: str) -> dict[str, Any]:
    numbers = _numbers(box, _BOX, path)
    node_id = box.get("id")
    if not isinstance(node_id, str) or not 0 < len(node_id) <= MAX_ID_LENGTH:
        raise MalformedFrame(f"{path}.id is text of 1 to {MAX_ID_LENGTH} characters.")
    return {"id": node_id, **numbers}


def _numbers(value: Any, names: tuple[str, ...], path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedFrame(f"{path} is an object.")
    numbers: dict[str, Any] = {name: value.get(name) for name in names}
    for name, number in numbers.items():
        # True and False are numbers in Python, not in JSON.
        if type(number) not in (int, float) or abs(number) > MAX_COORDINATE:
            raise MalformedFrame(f"{path}.{name} is a number within ±1e7.")
    return numbers
