"""How long to wait before something is done again: spread, so that not all come back at once."""

import random
from collections.abc import Iterator


def spread(seconds: float) -> float:
    """Half of a time to all of it, by chance."""
    return random.uniform(seconds / 2, seconds)  # noqa: S311 - spreads, hides nothing


def growing(first_seconds: float, longest_seconds: float) -> Iterator[float]:
    """Pauses between tries, each twice as long as the one before up to the longest; all spread."""
    seconds = first_seconds
    while True:
        yield spread(seconds)
        seconds = min(2 * seconds, longest_seconds)
