"""Calls of providers: begun once, and remembered until their outcome is known (GN30)."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from servicekit.errors import Invalid

MAX_NUMBER = 100
MAX_REQUEST_ID_LENGTH = 500
MAX_DETAIL_LENGTH = 500


class Outcome(StrEnum):
    """What became of a call at its provider."""

    SUCCEEDED = "succeeded"
    # The provider did nothing, or says that it failed.
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Call:
    """Which call of a job, from 1, and the model that is asked."""

    job_id: str
    lease_token: int
    number: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MAX_NUMBER:
            raise Invalid(f"A call's number is 1 to {MAX_NUMBER}.", path="number")


@dataclass(frozen=True)
class Begun:
    """How a call stands that an attempt is about to make.

    Only one that `is_new` may be made. Of one that was made before, the provider can be asked by
    `request_id`; without one nobody knows what became of it.
    """

    is_new: bool
    request_id: str | None


@dataclass(frozen=True)
class UncertainCall:
    """A call whose outcome nobody knows, of a job that is not worked on any more."""

    key: int
    job_id: str
    number: int
    account_id: str
    model: str
    request_id: str | None
    begun_at: datetime
