"""JSON text that is the same for equal values, and what is computed from it.

RFC 8785, except that every number that is an integer is written in plain decimal digits,
whatever its size (CV3). Stored objects are kept in this form.
"""

import hashlib
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

_FIRST_EXPONENT = 21  # ECMAScript writes numbers from 1e21 up, and below 1e-6, with an exponent


def canonical(value: Any) -> str:
    """The canonical JSON text of a value that is free of NaN, infinities and lone surrogates."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"{type(value).__name__} is not a JSON value")
    return writer(value)


def digest(value: Any) -> bytes:
    """SHA-256 over the canonical text: equal for equal payloads."""
    return hashlib.sha256(canonical(value).encode()).digest()


def object_hash(kind: str, object_id: str, text: str) -> int:
    """What an object adds to the content hash of its canvas, by XOR (CV4).

    `kind` is node, connection or field; `text` its canonical JSON. 64 bits, not negative.
    """
    hashed = hashlib.sha256(f"{kind}:{object_id}:{text}".encode()).digest()
    return int.from_bytes(hashed[:8])


def hex_of(content_hash: int) -> str:
    """A content hash as it is told: 16 hex digits."""
    return f"{content_hash:016x}"


def _object(value: dict[str, Any]) -> str:
    # In ASCII, code points and the UTF-16 units that RFC 8785 sorts by have the same order.
    keys = sorted(value) if "".join(value).isascii() else sorted(value, key=_utf16)
    members = []
    for key in keys:
        member = value[key]
        # Most members are text: one call less for each.
        text = encode_basestring(member) if type(member) is str else canonical(member)
        members.append(f"{encode_basestring(key)}:{text}")
    return f"{{{','.join(members)}}}"


def _array(value: list[Any]) -> str:
    return f"[{','.join(map(canonical, value))}]"


def _constant(value: bool | None) -> str:
    return "null" if value is None else "true" if value else "false"


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _number(value: float) -> str:
    if value.is_integer():
        return str(int(value))
    text = repr(value)
    if "e" not in text:
        return text
    # repr gives the shortest digits that read back as the same number, as ECMAScript does; only
    # the way of writing them differs.
    sign, digits, exponent = _digits(text)
    point = exponent + len(digits)
    if 0 < point <= _FIRST_EXPONENT:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{sign}{mantissa}e{point - 1}"


def _digits(text: str) -> tuple[str, str, int]:
    """Sign, significant digits, and the power of ten of the last digit."""
    sign = "-" if text.startswith("-") else ""
    mantissa, _, power = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    exponent = int(power or 0) - len(fraction)
    digits = (whole + fraction).lstrip("0")
    stripped = digits.rstrip("0")
    return sign, stripped, exponent + len(digits) - len(stripped)


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    dict: _object,
    list: _array,
    int: str,
    float: _number,
    bool: _constant,
    type(None): _constant,
}
