"""Failures as facts: one class per failure, in one of eight families that a caller can act on.

A service raises the class that names what happened; `servicekit.status` carries it across gRPC,
`gateway.problems` tells it to the browser. Anything else that is raised is a fault of ours.
"""

from typing import Any, ClassVar

Facts = dict[str, Any]


class Failure(Exception):  # noqa: N818 - facts are named without a suffix
    """A fact that ends a request.

    `reason` is the stable machine word in lower snake case; `detail` is one sentence for a person;
    `facts` are JSON values by snake-case name that the caller can act on.
    """

    reason: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, reason: str | None = None, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.machine_word = reason or self.reason
        self.facts: Facts = facts


class Invalid(Failure):
    """The request can never succeed as it is."""

    reason = "invalid_argument"


class Unauthenticated(Failure):
    """Nobody we know."""

    reason = "unauthenticated"


class Denied(Failure):
    """Somebody we know, who may not."""

    reason = "forbidden"


class NotFound(Failure):
    """Not there, or not theirs: the same for the caller."""

    reason = "not_found"

    def __init__(self, what: str, *, reason: str | None = None, **facts: Any) -> None:
        super().__init__(f"There is no such {what}.", reason=reason, **facts)


class Conflict(Failure):
    """The state is not what the caller took it for: read again."""

    reason = "conflict"


class FailedPrecondition(Failure):
    """Something else has to happen first."""

    reason = "failed_precondition"


class TooMany(Failure):
    """A limit is reached. `retry_after_seconds` among the facts says when to try again, if so."""

    reason = "rate_limited"


class Unavailable(Failure):
    """Nobody can tell now whether it happened: send the same request again."""

    reason = "unavailable"


class IdempotencyKeyReused(Conflict):
    """The key came before with another request."""

    reason = "idempotency_key_reused"

    def __init__(self) -> None:
        super().__init__("This idempotency key was used for another request.")


FAMILIES: tuple[type[Failure], ...] = (
    Invalid,
    Unauthenticated,
    Denied,
    NotFound,
    Conflict,
    FailedPrecondition,
    TooMany,
    Unavailable,
)


def family_of(failure: Failure) -> type[Failure]:
    """The family that a failure belongs to; `Failure` itself for one of none."""
    return next((family for family in FAMILIES if isinstance(failure, family)), Failure)
