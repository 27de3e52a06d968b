"""Who asks: session cookie or bearer token, and from which page."""

from dataclasses import dataclass
from http.cookies import Morsel

from starlette.requests import HTTPConnection

from gateway.accounts import SESSION, Accounts
from gateway.accounts_store import Account
from gateway.failures import OriginNotAllowed

COOKIE = "gesso_session"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Asker:
    """Somebody who is signed in. `secret` is that of the session, None for a bearer token."""

    account: Account
    secret: str | None
    extended: bool = False


class Doorkeeper:
    """Tells who sends a request, and turns away pages of others."""

    def __init__(self, accounts: Accounts, allowed_origins: frozenset[str]) -> None:
        self._accounts = accounts
        self._allowed_origins = allowed_origins

    async def asker(self, request: HTTPConnection) -> Asker | None:
        """Who is signed in, None if nobody is. A bearer token comes before a cookie."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            account = await self._accounts.token_account(credentials.strip())
            return Asker(account, secret=None) if account else None
        secret = request.cookies.get(COOKIE)
        if not secret:
            return None
        session = await self._accounts.session(secret)
        return Asker(session.account, secret, session.extended) if session else None

    def check_page(self, request: HTTPConnection, *, method: str) -> None:
        """Raises `OriginNotAllowed` for a change that a page of somebody else may have sent.

        A bearer token is never sent by a browser of itself; everything else that changes
        something must come from a page of ours.
        """
        if method in _SAFE_METHODS:
            return
        if request.headers.get("authorization", "").lower().startswith("bearer "):
            return
        origin = request.headers.get("origin")
        if origin is None:
            from_us = request.headers.get("sec-fetch-site") == "same-origin"
            if COOKIE in request.cookies and not from_us:
                raise OriginNotAllowed
        elif not self.allows(origin):
            raise OriginNotAllowed

    def allows(self, origin: str | None) -> bool:
        """Whether a page of this origin is ours."""
        return origin in self._allowed_origins


def cookie(secret: str, *, secure: bool) -> str:
    """The Set-Cookie value that signs a browser in; an empty secret signs it out."""
    morsel: Morsel[str] = Morsel()
    morsel.set(COOKIE, secret, secret)
    morsel["path"] = "/"
    morsel["httponly"] = True
    morsel["samesite"] = "Lax"
    morsel["secure"] = secure
    morsel["max-age"] = int(SESSION.total_seconds()) if secret else 0
    return morsel.OutputString()
