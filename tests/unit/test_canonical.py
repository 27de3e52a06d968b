"""Canonical JSON (CV3) and what is computed from it (CV4)."""

import hashlib
import struct

import pytest

from services.canvas.domain.canonical import canonical, object_hash


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
    ],
)
def test_numbers_are_written_as_ecmascript_does(bits: str, text: str) -> None:
    """CV3; the numbers are those of RFC 8785, appendix B."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))

    assert canonical(number) == text


@pytest.mark.parametrize("number", [10**21, 10**40, 2**53 + 1, -(10**30), 1e21, 1e300])
def test_integers_of_any_size_are_written_in_plain_digits(number: float) -> None:
    """CV3"""
    assert canonical(number) == str(int(number))


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    """CV3; the keys are those of RFC 8785, section 3.2.3."""
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\u00f6"]

    text = canonical(dict.fromkeys(keys, 0))

    order = ["\\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert text == "{" + ",".join(f'"{key}":0' for key in order) + "}"


def test_control_characters_are_escaped_and_nothing_else() -> None:
    """CV3"""
    assert canonical('\b\t\n\f\r\x0f"\\/é\u2028') == '"\\b\\t\\n\\f\\r\\u000f\\"\\\\/é\u2028"'


def test_empty_and_nested_values() -> None:
    """CV3"""
    assert canonical({"b": [], "a": {}, "c": [None, True, False]}) == (
        '{"a":{},"b":[],"c":[null,true,false]}'
    )


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError):
        canonical(object())


def test_the_hash_of_an_object_is_the_start_of_a_sha_256() -> None:
    """CV4"""
    expected = hashlib.sha256(b'node:n1:{"id":"n1"}').hexdigest()[:16]

    assert f"{object_hash('node', 'n1', canonical({'id': 'n1'})):016x}" == expected
