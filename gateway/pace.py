"""How often a window may send its presence, and how often rooms tell of it."""

from math import exp

RATE_PER_SECOND = 40.0
BURST = 80.0
# Nobody who moves a mouse sends so much; for a moment, a page that catches up may.
ABUSE_PER_SECOND = 4 * RATE_PER_SECOND
ABUSE_SECONDS = 10.0


class TokenBucket:
    """Allows so many events a second on average, and a burst after a pause.

    `now` is seconds of a clock that does not run backwards.
    """

    def __init__(self, *, per_second: float, burst: float, now: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Whether an event is within the rate; if so, it counts."""
        self._fill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """In how many seconds an event will be within the rate."""
        self._fill(now)
        return max(0.0, (1 - self._tokens) / self._per_second)

    def full(self, now: float) -> bool:
        """Whether there was a pause long enough for a whole burst."""
        self._fill(now)
        return self._tokens >= self._burst

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now


class AbuseWatch:
    """Tells when a window has sent over four times the rate for ten seconds (PR14)."""

    def __init__(self, now: float) -> None:
        # One second's worth is in the bucket: only who empties it is over the rate.
        self._bucket = TokenBucket(per_second=ABUSE_PER_SECOND, burst=ABUSE_PER_SECOND, now=now)
        self._over_since: float | None = None

    def count(self, now: float) -> bool:
        """Counts a frame; whether that is abuse."""
        if self._over_since is not None and self._bucket.full(now):
            self._over_since = None
        if self._bucket.take(now):
            return False
        if self._over_since is None:
            self._over_since = now
        return now - self._over_since >= ABUSE_SECONDS


# Rooms tell what changes at once below so many frames a second, all rooms together; over it they
# gather for a tick, which is longest from so many on.
AT_ONCE_PER_SECOND = 3_000.0
MUCH_PER_SECOND = 48_000.0
SHORTEST_TICK_SECONDS = 0.004
LONGEST_TICK_SECONDS = 0.016
_MEMORY_SECONDS = 0.25


class Ticks:
    """How long changes are gathered before they are told, by how much there is to tell (PR7)."""

    def __init__(self, now: float) -> None:
        self._told = 0.0
        self._at = now

    def count(self, frames: int, now: float) -> None:
        """Counts a change that so many windows hear of."""
        if now - self._at > SHORTEST_TICK_SECONDS:
            self._fade(now)
        self._told += frames

    def seconds(self, now: float) -> float:
        """The tick that fits the changes of the last quarter of a second."""
        self._fade(now)
        per_second = self._told / _MEMORY_SECONDS
        if per_second < AT_ONCE_PER_SECOND:
            return 0.0
        share = min(1.0, per_second / MUCH_PER_SECOND)
        return max(SHORTEST_TICK_SECONDS, share * LONGEST_TICK_SECONDS)

    def _fade(self, now: float) -> None:
        self._told *= exp((self._at - now) / _MEMORY_SECONDS)
        self._at = now
