"""The text of a task as numbered events, and how much of it there may be."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.tasks.domain.tasks import Status

MAX_EVENT_BYTES = 64 * 1024
MAX_TEXT_BYTES = 2 * 1024 * 1024
MAX_EVENTS = 4_096


@dataclass(frozen=True)
class Delta:
    """More text."""

    sequence: int
    content: str


@dataclass(frozen=True)
class Reset:
    """A new attempt starts: the text before it is void."""

    sequence: int
    attempt: int


@dataclass(frozen=True)
class Terminal:
    """The task is over, with this text; nothing follows."""

    status: Status
    text: str | None


@dataclass(frozen=True)
class Alive:
    """Nothing new, still there."""


TextEvent = Delta | Reset


def storable(piece: str) -> str:
    """A piece of text without what a database cannot hold: U+0000 and lone surrogates."""
    return piece.replace("\0", "").encode(errors="replace").decode()


def contents(text: str, *, most_bytes: int = MAX_EVENT_BYTES) -> Iterator[str]:
    """The text in as few pieces as fit an event each, no character split (TK10)."""
    encoded = text.encode()
    start = 0
    while start < len(encoded):
        end = min(start + most_bytes, len(encoded))
        # Bytes of the form 10xxxxxx go on with a character.
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
            end -= 1
        yield encoded[start:end].decode()
        start = end


@dataclass(frozen=True)
class Pace:
    """How often an attempt writes an event, so that its events last for all of its time.

    It may write `events` within `seconds`: the first half of them `quickest_seconds` apart, the
    others evenly over the time that is left then (TK11).
    """

    events: int
    seconds: float
    quickest_seconds: float

    def pause(self, written: int, elapsed_seconds: float) -> float:
        """How many seconds to wait after so many events, so long after the start."""
        if written < self.events // 2:
            return self.quickest_seconds
        left = max(1, self.events - written - 1)  # the last one is for the end of the text
        return max(self.quickest_seconds, (self.seconds - elapsed_seconds) / left)


def events_of_attempt(last_sequence: int, *, attempts_left: int) -> int:
    """How many events the next attempt may write: half of the rest, or all if it is the last."""
    left = max(0, MAX_EVENTS - last_sequence)
    return left // 2 if attempts_left > 1 else left
