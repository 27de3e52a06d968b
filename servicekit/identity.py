"""Who calls, and on whose behalf: what travels in the metadata of every call."""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from servicekit.errors import Invalid, Unauthenticated

Metadata = tuple[tuple[str, str], ...]
if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:  # generic in its stubs only
    Context = grpc.aio.ServicerContext

ACCOUNT = "gesso-account"
CALLER = "gesso-caller"
REQUEST_ID = "x-request-id"
TRACE = "traceparent"
_AUTHORIZATION = "authorization"


@dataclass(frozen=True)
class Behalf:
    """For whom a call is made: an account, or none for work that serves all of them."""

    account_id: str | None = None
    request_id: str | None = None
    trace: str | None = None

    def metadata(self) -> Metadata:
        """The metadata entries that say so."""
        entries = ((ACCOUNT, self.account_id), (REQUEST_ID, self.request_id), (TRACE, self.trace))
        return tuple((name, value) for name, value in entries if value)


def credentials(*, caller: str, tokens: Sequence[str]) -> Metadata:
    """The metadata entries by which one process shows another that it belongs to the suite.

    `tokens` are the accepted internal tokens; the first is the one to show.
    """
    return ((_AUTHORIZATION, f"Bearer {tokens[0]}"), (CALLER, caller))


def check_credentials(metadata: Iterable[tuple[str, str | bytes]], tokens: Sequence[bytes]) -> None:
    """Raises `Unauthenticated` unless the caller shows one of the tokens."""
    shown = _entry(metadata, _AUTHORIZATION)
    offered = shown.encode() if isinstance(shown, str) else shown
    offered = offered.removeprefix(b"Bearer ")
    # Every token is compared, so that the time taken tells nothing.
    accepted = [hmac.compare_digest(offered, token) for token in tokens]
    if not any(accepted):
        raise Unauthenticated("The call does not carry an accepted internal token.")


def account_of(context: Context) -> str:
    """The account that a call acts for. Raises `Invalid` if it says none."""
    account = _entry(context.invocation_metadata() or (), ACCOUNT)
    if not isinstance(account, str) or not account:
        raise Invalid(f"The call needs the metadata entry {ACCOUNT}.")
    return account


def _entry(metadata: Iterable[tuple[str, str | bytes]], wanted: str) -> str | bytes:
    """The last entry of a name, empty if there is none."""
    found: str | bytes = ""
    for name, value in metadata:
        if name == wanted:
            found = value
    return found
