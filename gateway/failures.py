"""What the gateway itself can find wrong with a request."""

from servicekit.errors import Conflict, Denied, Invalid, NotFound, TooMany, Unauthenticated


class SignedOut(Unauthenticated):
    """Nobody is signed in, or not any more."""

    def __init__(self) -> None:
        super().__init__("Sign in first: POST /api/auth/login, or send a bearer token.")


class InvalidCredentials(Unauthenticated):
    """No such account, or another password: nobody learns which."""

    reason = "invalid_credentials"

    def __init__(self) -> None:
        super().__init__("The e-mail address or the password is wrong.")


class OriginNotAllowed(Denied):
    """A page of somebody else asks in the name of who is signed in."""

    reason = "origin_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "This request changes something and does not come from a page of ours: it needs an "
            "allowed Origin header. Scripts use a bearer token instead of the cookie."
        )


class EmailTaken(Conflict):
    """Somebody has an account with this address."""

    reason = "email_taken"

    def __init__(self) -> None:
        super().__init__("There is an account with this e-mail address; sign in instead.")


class TooLarge(TooMany):
    """The body is longer than the route takes."""

    reason = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is longer than {limit} bytes.", limit=limit)


class RequestTimeout(Invalid):
    """The body did not come in time."""

    reason = "request_timeout"

    def __init__(self) -> None:
        super().__init__("The body did not come in time.")


class UnsupportedMediaType(Invalid):
    """The body is of a type that the route does not take."""

    reason = "unsupported_media_type"

    def __init__(self, expected: str) -> None:
        super().__init__(f"The Content-Type must be {expected}.")


class InvalidCursor(Invalid):
    """The place to go on from is none."""

    reason = "invalid_cursor"

    def __init__(self, detail: str = "after and Last-Event-ID are non-negative integers.") -> None:
        super().__init__(detail, path="after")


class InvalidOperation(Invalid):
    """An operation of a canvas change is not of a form that we know."""

    reason = "invalid_operation"


class RangeNotSatisfiable(Invalid):
    """The range lies outside the file."""

    reason = "range_not_satisfiable"

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"The range lies outside the file of {size_bytes} bytes.",
            content_range=f"bytes */{size_bytes}",
        )


class MethodNotAllowed(Invalid):
    """The path is there, but not for this method."""

    reason = "method_not_allowed"

    def __init__(self, allow: str) -> None:
        super().__init__(f"This path takes {allow}.", allow=allow)


class NoSuchPath(NotFound):
    """Nothing is served at the path."""

    def __init__(self) -> None:
        super().__init__("path; GET / says what there is")


class RateLimited(TooMany):
    """Too many requests of one kind in a while."""

    def __init__(self, what: str, retry_after_seconds: int) -> None:
        super().__init__(
            f"Too many {what}; try again in {retry_after_seconds} s.",
            retry_after_seconds=retry_after_seconds,
        )
