"""The frames that a window may send over the realtime channel."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

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


@dataclass(frozen=True)
class PresenceFrame:
    """Where a window's cursor is and what it drags, as JSON that can be passed on."""

    cursor: bytes
    drag: bytes


_Number = (
    Annotated[int, msgspec.Meta(ge=-int(MAX_COORDINATE), le=int(MAX_COORDINATE))]
    | Annotated[float, msgspec.Meta(ge=-MAX_COORDINATE, le=MAX_COORDINATE)]
)


class _Point(msgspec.Struct):
    x: _Number
    y: _Number


class _Box(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
    x: _Number
    y: _Number
    width: _Number
    height: _Number


class _Frame(msgspec.Struct, tag_field="type", tag="presence"):
    cursor: _Point | None
    drag: Annotated[list[_Box], msgspec.Meta(max_length=MAX_DRAGGED)] | None


_DECODER = msgspec.json.Decoder(_Frame)
_ENCODER = msgspec.json.Encoder()


def presence_from_text(text: bytes) -> PresenceFrame:
    """The presence that a text frame tells.

    An absent cursor or drag is none; members that the protocol does not know are left out.
    Raises `MalformedFrame`.
    """
    return _plain(text) or _presence(text)


def _plain(text: bytes) -> PresenceFrame | None:
    """The presence that a frame tells as pages write it: in a tenth of the time.

    What we would write just so has no key twice and no member that we do not know; without an
    escape it has no character either that we refuse.
    """
    try:
        frame = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if b"\\" in text or _ENCODER.encode(frame) != text:
        return None
    return PresenceFrame(_ENCODER.encode(frame.cursor), _ENCODER.encode(frame.drag))


def _presence(text: bytes) -> PresenceFrame:
    try:
        frame = loads(text.decode())
    except UnicodeDecodeError:
        raise MalformedFrame("A frame is a text in UTF-8.") from None
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
