"""How long a job and its provider may take."""

from dataclasses import dataclass

# Kept back from the provider, so that what it made can still be stored and reported.
RESERVE_SECONDS = 60.0
SHORT_SECONDS = 120.0


@dataclass(frozen=True)
class Deadlines:
    """When the provider, and when the whole job, must be done; on one monotonic clock."""

    provider: float
    job: float


def deadlines(budget_seconds: float, *, started: float) -> Deadlines:
    """The deadlines of a job: 60 seconds are kept back, or half of a budget under 120 (GN17)."""
    reserve = budget_seconds / 2 if budget_seconds < SHORT_SECONDS else RESERVE_SECONDS
    return Deadlines(provider=started + budget_seconds - reserve, job=started + budget_seconds)


def fits_another_try(now: float, pause: float, took: float, deadline: float) -> bool:
    """Whether a pause and another try, as long as the last one, end before the deadline."""
    return now + pause + took < deadline
