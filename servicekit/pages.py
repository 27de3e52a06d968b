"""Pages of long lists: sizes within limits, tokens that say where the next page begins."""

import base64
import json
from typing import Any

from servicekit.errors import Invalid

MAX_PAGE_SIZE = 200


def page_size(asked: int, *, default: int = 50) -> int:
    """How many items a page has; 0 asks for the default. Raises `Invalid` outside 0 to 200."""
    if not 0 <= asked <= MAX_PAGE_SIZE:
        raise Invalid(f"A page has 1 to {MAX_PAGE_SIZE} items, not {asked}.", path="pageSize")
    return asked or default


def token_from_place(*place: int | str) -> str:
    """The token of the page that begins after `place`, the sort key of the last item."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_from_token(token: str, *kinds: type) -> tuple[Any, ...] | None:
    """The place that a token names, None for an empty token.

    Raises `Invalid` for a token that is not one of ours: other than one value of each of `kinds`.
    """
    if not token:
        return None
    try:
        padded = token + "=" * (-len(token) % 4)
        place = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError:
        place = None
    fits = (
        isinstance(place, list)
        and len(place) == len(kinds)
        and all(type(value) is kind for value, kind in zip(place, kinds, strict=True))
        and all(abs(value) < 2**63 for value in place if isinstance(value, int))
    )
    if not fits:
        raise Invalid("The page token is not one that a list gave.", path="pageToken")
    return tuple(place)
