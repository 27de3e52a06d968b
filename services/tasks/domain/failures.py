"""What can be wrong with a request to the tasks service, or go wrong with a task."""

from servicekit.errors import Conflict, FailedPrecondition, TooMany, Unavailable


class BacklogFull(TooMany):
    """The account has too many tasks waiting."""

    reason = "backlog_full"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"At most {most} tasks of an account wait at once; let some of them end first.",
            limit=most,
        )


class Draining(Unavailable):
    """This server goes away; another one goes on where it stopped."""

    def __init__(self) -> None:
        super().__init__("The server is moving; resume with the last sequence number seen.")


class LeaseLost(Conflict):
    """Whoever wants to write does not have the task any more; nothing was written."""

    reason = "lease_lost"

    def __init__(self) -> None:
        super().__init__("The task's lease has ended, and it may be in other hands.")


class TimedOut(Unavailable):
    """The model took too long."""

    reason = "timed_out"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The model did not end within {seconds:g} seconds.")


class TextTooLong(TooMany):
    """The text is over the limits of a task."""

    reason = "text_too_long"

    def __init__(self) -> None:
        super().__init__("The text is longer than a task may hold: 2 MiB or 4,096 events.")


class UnknownModel(FailedPrecondition):
    """No worker knows the model that the task asks for."""

    reason = "unknown_model"

    def __init__(self, model: str) -> None:
        super().__init__(f"There is no text model called {model!r}.")
