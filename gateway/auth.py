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

    async def asker(self, request: HTTPConnection, *, slides: bool) -> Asker | None:
        """Who is signed in, None if nobody is. A bearer token comes before a cookie.

        `slides` if the answer can set the cookie anew: session and cookie last equally long.
        """
        bearer = _bearer_token(request)
        if bearer is not None:
            account = await self._accounts.token_account(bearer)
            return Asker(account, secret=None) if account else None
        secret = request.cookies.get(COOKIE)
        if not secret:
            return None
        session = await self._accounts.session(secret, slides=slides)
        return Asker(session.account, secret, session.extended) if session else None

    def check_page(self, request: HTTPConnection, *, method: str) -> None:
        """Raises `OriginNotAllowed` for a change that a page of somebody else may have sent.

        A bearer token is never sent by a browser of itself; everything else that changes
        something must come from a page of ours.
        """
        if method in _SAFE_METHODS or _bearer_token(request) is not None:
            return
        origin = request.headers.get("origin")
        if origin is None:
            from_us = request.headers.get("sec-fetch-site") == "same-origin"
            if COOKIE in request.cookies and not from_us:
                raise OriginNotAllowed
        elif origin not in self._allowed_origins:
            raise OriginNotAllowed

    def allows_window(self, request: HTTPConnection) -> bool:
        """Whether a socket may be opened: by a page of ours, or by a script with a token."""
        if _bearer_token(request) is not None:
            return True
        return request.headers.get("origin") in self._allowed_origins


def _bearer_token(request: HTTPConnection) -> str | None:
    """The bearer token of a request; None without one, or with other credentials."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None


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
