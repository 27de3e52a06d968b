"""Pages of long lists."""

import base64
import json

import pytest

from servicekit.errors import Invalid
from servicekit.pages import NEWEST_KEY, page_of, page_size, place_from_token


def token(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_pages_follow_one_another_to_the_end() -> None:
    """CV14"""
    keys = list(range(7, 0, -1))
    seen: list[int] = []
    next_token = ""
    for _ in range(3):
        (before,) = place_from_token(next_token)
        found = [key for key in keys if key < before][: 3 + 1]
        shown, next_token = page_of(found, 3, lambda key: (key,))
        seen += shown

    assert seen == keys
    assert next_token == ""


def test_the_first_page_begins_with_the_newest() -> None:
    assert place_from_token("") == (NEWEST_KEY,)
    assert place_from_token("", newest=(9, 5)) == (9, 5)


@pytest.mark.parametrize(
    "odd",
    [
        "x",
        "é",
        token("{}"),
        token("7"),
        token("[]"),
        token("[1,2]"),
        token('["1"]'),
        token('["\\ud800"]'),
        token("[true]"),
        token("[1.0]"),
        token("[NaN]"),
        token("[-1]"),
        token(json.dumps([NEWEST_KEY + 1])),
        token("[" * 40_000),
        token(f"[{'1' * 40_000}]"),
        token("\xff"),
    ],
)
def test_a_token_that_no_list_gave_is_refused(odd: str) -> None:
    """CV14"""
    with pytest.raises(Invalid):
        place_from_token(odd)


def test_a_place_beyond_all_others_is_refused() -> None:
    """CV14"""
    with pytest.raises(Invalid):
        place_from_token(token("[10,1]"), newest=(9, 5))


@pytest.mark.parametrize("asked", [-1, 201])
def test_a_page_of_another_size_is_refused(asked: int) -> None:
    with pytest.raises(Invalid):
        page_size(asked)
