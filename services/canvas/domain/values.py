"""JSON values of canvases: when two are equal, and how a path leads into one."""

import re
from typing import Any

from services.canvas.domain.failures import InlineMedia, InvalidOperation

MAX_DEPTH = 64
FORBIDDEN_SEGMENTS = frozenset({"__proto__", "prototype", "constructor"})

_DATA_URL = re.compile(
    r"\s*data:(image|video|audio)/([\w.+-]+)(;[^,\s]*)?,(?P<payload>.*)", re.IGNORECASE | re.DOTALL
)


def equal(left: Any, right: Any) -> bool:
    """Whether two values are the same as baselines (CV2).

    Numbers compare by value, `true` is not 1, strings by code point, arrays in order. An absent
    member and a member that holds null are equal.
    """
    if left is right:
        return True
    if isinstance(left, dict) and isinstance(right, dict):
        return all(equal(left.get(key), right.get(key)) for key in left.keys() | right.keys())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and bool(left == right)


def segments(path: str) -> list[str]:
    """The member names that a path is made of. Raises `InvalidOperation` (CV5)."""
    names = path.split(".")
    if not all(names):
        raise InvalidOperation(f"The path {path!r} has an empty segment.", path=path)
    if len(names) > MAX_DEPTH:
        raise InvalidOperation(f"A path has at most {MAX_DEPTH} segments.", path=path)
    forbidden = FORBIDDEN_SEGMENTS.intersection(names)
    if forbidden:
        raise InvalidOperation(f"A path must not contain {min(forbidden)}.", path=path)
    return names


def check_paths(paths: list[str]) -> None:
    """Raises `InvalidOperation` if a path is malformed or leads into another one (CV5)."""
    known = {tuple(segments(path)): path for path in paths}
    for names, path in known.items():
        for length in range(1, len(names)):
            outer = known.get(names[:length])
            if outer is not None:
                raise InvalidOperation(f"The paths {outer!r} and {path!r} overlap.", path=path)


def read(value: dict[str, Any], path: str) -> Any:
    """What a path leads to, None where a member on the way is absent or null.

    Raises `InvalidOperation` if it leads through an array or a scalar.
    """
    here: Any = value
    for name in segments(path):
        if here is None:
            return None
        if not isinstance(here, dict):
            raise InvalidOperation(
                f"The path {path!r} leads through something that is not an object.", path=path
            )
        here = here.get(name)
    return here


def written(value: dict[str, Any], path: str, target: Any) -> dict[str, Any]:
    """A copy of `value` in which the path leads to `target`; objects on the way are made."""
    first, _, rest = path.partition(".")
    if not rest:
        return {**value, first: target}
    inner = value.get(first)
    return {**value, first: written(inner if isinstance(inner, dict) else {}, rest, target)}


def check_no_inline_media(value: Any, path: str = "") -> None:
    """Raises `InlineMedia` where a string is a data URL of an image, video or audio (CV7)."""
    match value:
        case str() if _is_inline_media(value):
            raise InlineMedia(path=path)
        case dict():
            for key, member in value.items():
                check_no_inline_media(member, f"{path}.{key}" if path else key)
        case list():
            for index, item in enumerate(value):
                check_no_inline_media(item, f"{path}.{index}" if path else str(index))


def _is_inline_media(text: str) -> bool:
    found = _DATA_URL.match(text)
    if found is None:
        return False
    # A prompt may begin with such words; a URL has no spaces, but for SVG as browsers write it.
    return found[2].lower() == "svg+xml" or not re.search(r"\s", found["payload"].strip())


def check_depth(value: Any, path: str, *, limit: int) -> None:
    """Raises `InvalidOperation` if the value at a path nests deeper than `limit`."""
    if _deeper_than(value, limit):
        raise InvalidOperation(f"{path!r} makes the node deeper than {MAX_DEPTH}.", path=path)


def _deeper_than(value: Any, limit: int) -> bool:
    match value:
        case dict():
            return limit == 0 or any(_deeper_than(member, limit - 1) for member in value.values())
        case list():
            return limit == 0 or any(_deeper_than(item, limit - 1) for item in value)
    return False
