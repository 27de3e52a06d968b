"""What can be wrong with a request to the generation service."""

from collections.abc import Mapping

from servicekit.errors import Conflict, FailedPrecondition, Invalid, TooMany

BACKLOG_RETRY_SECONDS = 10


class WrongRequest(Invalid):
    """A request that can never be a job; `errors` among the facts says what and where."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        """`messages` tells by path, e.g. `params.size`, what is wrong there."""
        first_path, first_message = next(iter(messages.items()))
        super().__init__(
            f"{first_path}: {first_message}",
            errors=[{"path": path, "message": message} for path, message in messages.items()],
        )


class InsufficientBalance(FailedPrecondition):
    """The balance does not cover the price."""

    reason = "insufficient_balance"

    def __init__(self, *, balance_micros: int, price_micros: int) -> None:
        super().__init__(
            "The balance does not cover the price.",
            balance_micros=balance_micros,
            price_micros=price_micros,
        )


class BacklogFull(TooMany):
    """The account has too many jobs waiting."""

    reason = "backlog_full"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} jobs are waiting already; try again when some are done.",
            limit=limit,
            retry_after_seconds=BACKLOG_RETRY_SECONDS,
        )


class JobFinishing(Conflict):
    """The job is over, or its end is on the way to the canvas."""

    reason = "job_finishing"

    def __init__(self) -> None:
        super().__init__("The job is finishing or over; it cannot be cancelled any more.")


class CallNotUncertain(FailedPrecondition):
    """The outcome of a call is known, it may still come, or there is no such call."""

    reason = "call_not_uncertain"

    def __init__(self) -> None:
        super().__init__(
            "There is no such call with an uncertain outcome; gesso jobs uncertain lists them."
        )


class LeaseFenced(FailedPrecondition):
    """The lease is over or another's: nothing was changed."""

    reason = "lease_fenced"

    def __init__(self) -> None:
        super().__init__("The lease is over, or another's; stop working on the job.")
