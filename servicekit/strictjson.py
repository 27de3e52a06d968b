"""Reads JSON that every reader understands alike, and nothing else."""

import json
import math
from collections import Counter
from typing import Any

from servicekit.errors import Invalid

MAX_DEPTH = 64


class NotJson(Invalid):
    """The text is not JSON, or JSON that readers understand differently."""

    reason = "invalid_json"


def loads(text: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text in UTF-8.

    Raises `NotJson` for what is malformed and for what readers do not agree about: NaN and
    infinities, numbers out of range, duplicate keys, lone surrogates, U+0000, and nesting deeper
    than `max_depth` arrays and objects.
    """
    try:
        value = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        raise NotJson("The text is not UTF-8.") from None
    except RecursionError:
        raise NotJson(f"Nesting is deeper than {max_depth}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJson(f"Malformed JSON at {where}: {error.msg}.") from None
    except ValueError:
        # Python refuses to read integers of more than 4,300 digits.
        raise NotJson("A number is out of range.") from None
    _check(value, max_depth)
    return value


def dumps(value: Any) -> str:
    """Compact JSON text of a value that `loads` could have given."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _check(value: Any, depth_left: int) -> None:
    match value:
        case str():
            _check_text(value)
        case float() if not math.isfinite(value):
            raise NotJson("A number is out of range.")
        case dict():
            if depth_left == 0:
                raise NotJson("Nesting is too deep.")
            for key, member in value.items():
                _check_text(key)
                _check(member, depth_left - 1)
        case list():
            if depth_left == 0:
                raise NotJson("Nesting is too deep.")
            for item in value:
                _check(item, depth_left - 1)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise NotJson("A string contains U+0000.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJson("A string contains a lone surrogate.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise NotJson(f"The key {twice[:80]!r} appears twice in one object.")
    return members


def _constant(name: str) -> Any:
    raise NotJson(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
