"""How long jobs take lately, and so when one that waits will be done."""

from datetime import timedelta

# What the newest job counts for.
WEIGHT = 0.1


class Durations:
    """A moving average of how long the jobs of each kind took."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def took(self, kind: str, length: timedelta) -> None:
        """A job of a kind took so long."""
        seconds = length.total_seconds()
        before = self._seconds.get(kind, seconds)
        self._seconds[kind] = before + WEIGHT * (seconds - before)

    def eta(self, kind: str, *, ahead: int, running: int) -> timedelta | None:
        """How long until a job is done that has so many before it, while so many are worked on.

        None if no job of its kind was done yet, or none is worked on.
        """
        seconds = self._seconds.get(kind)
        if seconds is None or running == 0:
            return None
        return timedelta(seconds=seconds * (ahead // running + 1))
