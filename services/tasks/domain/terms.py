"""On what terms a worker has a task."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Terms:
    """On what terms tasks are claimed."""

    lease: timedelta
    running_per_account: int
    attempts: int
