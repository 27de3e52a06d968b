"""Pages of long lists: sizes within limits, tokens that say where the next page begins."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from servicekit.errors import Invalid

MAX_PAGE_SIZE = 200
MAX_TOKEN_LENGTH = 200
# No key is higher: lists of the newest first begin before it.
NEWEST_KEY = 2**63 - 1

Item = TypeVar("Item")
Place = tuple[int, ...]


def page_size(asked: int, *, default: int = 50) -> int:
    """How many items a page has; 0 asks for the default. Raises `Invalid` outside 0 to 200."""
    if not 0 <= asked <= MAX_PAGE_SIZE:
        raise Invalid(f"A page has 1 to {MAX_PAGE_SIZE} items, not {asked}.", path="pageSize")
    return asked or default


def page_of(
    found: Sequence[Item], size: int, place: Callable[[Item], Place]
) -> tuple[Sequence[Item], str]:
    """The items of a page of `size`, and the token of the next page, empty if there is none.

    `found` is one item more than the page has, if there are so many. `place` tells the sort key of
    an item.
    """
    shown = found[:size]
    return shown, _token_from_place(place(shown[-1])) if len(found) > size else ""


def place_from_token(token: str, *, newest: Place = (NEWEST_KEY,)) -> Place:
    """The place that a page begins before: `newest` for an empty token.

    Raises `Invalid` for a token that is not one of ours: as many whole numbers as `newest` has,
    none negative, none above its.
    """
    if not token:
        return newest
    place = _numbers_from_token(token)
    if len(place) != len(newest) or any(
        not 0 <= number <= most for number, most in zip(place, newest, strict=True)
    ):
        raise Invalid("The page token is not one that a list gave.", path="pageToken")
    return place


def _token_from_place(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _numbers_from_token(token: str) -> Place:
    """The numbers of a token, none if it is no token."""
    if len(token) > MAX_TOKEN_LENGTH:
        return ()
    try:
        padded = token + "=" * (-len(token) % 4)
        place = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError:
        return ()
    if not isinstance(place, list) or any(type(number) is not int for number in place):
        return ()
    return tuple(place)
