"""JSON that every reader understands alike."""

import pytest

from servicekit.strictjson import NotJson, dumps, loads


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "Malformed"),
        ("{", "Malformed"),
        ("[1,]", "Malformed"),
        ("'a'", "Malformed"),
        ("NaN", "NaN"),
        ("-Infinity", "Infinity"),
        ("1e999", "out of range"),
        ("-1e999", "out of range"),
        ("9" * 5000, "out of range"),
        ('{"a":1,"b":2,"a":3}', "'a'"),
        ('{"x":{"a":1,"a":1}}', "'a'"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udc00":1}', "surrogate"),
        ('"\\ude00\\ud83d"', "surrogate"),
        ('"a\\u0000b"', "U+0000"),
        ('{"\\u0000":1}', "U+0000"),
        ("[" * 65 + "]" * 65, "deep"),
        ('{"a":' * 65 + "1" + "}" * 65, "deep"),
        ("[" * 100_000, "eep"),
    ],
)
def test_what_readers_do_not_agree_about_is_refused(text: str, word: str) -> None:
    with pytest.raises(NotJson) as caught:
        loads(text)

    assert word in caught.value.detail


def test_bytes_must_be_utf_8() -> None:
    with pytest.raises(NotJson):
        loads(b'"\xff"')


def test_many_repeated_keys_are_refused_in_no_time() -> None:
    keys = ",".join(f'"{number}":1' for number in range(200_000))

    with pytest.raises(NotJson):
        loads(f'{{{keys},"0":2}}')


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, 10**30, "", "🙋‍♀️", {"a": [{}, []]}, ["\ud83d\ude00"], "x" * 100],
)
def test_what_is_fine_comes_through(value: object) -> None:
    text = dumps(value) if value != ["\ud83d\ude00"] else '["\\ud83d\\ude00"]'

    assert loads(text) == (value if value != ["\ud83d\ude00"] else ["\U0001f600"])
    assert loads("[" * 64 + "]" * 64) is not None
