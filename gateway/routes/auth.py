"""Registration, login, logout, who am I, and bearer tokens."""

from starlette.requests import Request

from gateway.accounts import Accounts
from gateway.accounts_store import Account, Token
from gateway.auth import COOKIE, cookie
from gateway.endpoints import Access, Answer, Call, Input, NoQuery, Output, endpoint
from gateway.grants import Grants
from gateway.limits import TryLimits
from servicekit.times import rfc3339


class Registration(Input, frozen=True):
    """Who wants an account."""

    email: str
    password: str
    name: str | None = None


class Credentials(Input, frozen=True):
    """Who wants to sign in."""

    email: str
    password: str


class AccountView(Output, frozen=True):
    """An account."""

    id: str
    email: str
    name: str
    created_at: str


class TokenRequest(Input, frozen=True):
    """What a new token shall be called."""

    name: str


class TokenView(Output, frozen=True):
    """A bearer token; `token` is its secret, shown when it is made and never again."""

    id: str
    name: str
    created_at: str
    token: str | None = None


class Tokens(Output, frozen=True):
    """The account's tokens."""

    tokens: list[TokenView]


class AuthRoutes:
    """Who somebody is."""

    def __init__(
        self, accounts: Accounts, grants: Grants, tries: TryLimits, *, secure: bool
    ) -> None:
        self._accounts = accounts
        self._grants = grants
        self._tries = tries
        self._secure = secure

    @endpoint(
        "POST",
        "/api/auth/register",
        tag="auth",
        access=Access.ANYONE,
        body=Registration,
        answers={201: AccountView},
        refusals=("email_taken", "rate_limited"),
    )
    async def register(self, call: Call[Registration, NoQuery]) -> Answer:
        """Make an account and sign in at once."""
        await self._tries.count("registrations", address=_address(call.request))
        account = await self._accounts.register(
            email=call.body.email, password=call.body.password, name=call.body.name
        )
        await self._grants.now(account.account_id)
        return await self._signed_in(account, status=201)

    @endpoint(
        "POST",
        "/api/auth/login",
        tag="auth",
        access=Access.ANYONE,
        body=Credentials,
        answers={200: AccountView},
        refusals=("invalid_credentials", "rate_limited"),
    )
    async def log_in(self, call: Call[Credentials, NoQuery]) -> Answer:
        """Sign in."""
        email = call.body.email.strip().lower()
        await self._tries.count("sign-ins", address=_address(call.request), email=email)
        account = await self._accounts.log_in(email=email, password=call.body.password)
        return await self._signed_in(account, status=200)

    @endpoint("POST", "/api/auth/logout", tag="auth", access=Access.ANYONE, answers={204: None})
    async def log_out(self, call: Call[None, NoQuery]) -> Answer:
        """Sign out: the session is over everywhere. Doing it again changes nothing."""
        secret = call.request.cookies.get(COOKIE)
        if secret:
            await self._accounts.end_session(secret)
        return Answer(status=204, headers={"Set-Cookie": cookie("", secure=self._secure)})

    @endpoint("GET", "/api/me", tag="auth", answers={200: AccountView})
    async def me(self, call: Call[None, NoQuery]) -> Answer:
        """Who is signed in."""
        return Answer(view_of_account(call.signed_in.account))

    @endpoint(
        "POST",
        "/api/auth/tokens",
        tag="auth",
        body=TokenRequest,
        answers={201: TokenView},
        refusals=("rate_limited",),
    )
    async def make_token(self, call: Call[TokenRequest, NoQuery]) -> Answer:
        """Make a bearer token for scripts; its secret is shown this once."""
        token, secret = await self._accounts.make_token(call.signed_in.account, call.body.name)
        return Answer(_view_of_token(token, secret), status=201)

    @endpoint("GET", "/api/auth/tokens", tag="auth", answers={200: Tokens})
    async def tokens(self, call: Call[None, NoQuery]) -> Answer:
        """List the bearer tokens, newest first."""
        tokens = await self._accounts.tokens(call.signed_in.account)
        return Answer(Tokens(tokens=[_view_of_token(token, None) for token in tokens]))

    @endpoint(
        "DELETE",
        "/api/auth/tokens/{token_id}",
        tag="auth",
        answers={204: None},
        refusals=("not_found",),
    )
    async def delete_token(self, call: Call[None, NoQuery]) -> Answer:
        """Delete a bearer token; requests that carry it are refused from now on."""
        await self._accounts.delete_token(call.signed_in.account, call.path["token_id"])
        return Answer(status=204)

    async def _signed_in(self, account: Account, *, status: int) -> Answer:
        secret = await self._accounts.start_session(account)
        headers = {"Set-Cookie": cookie(secret, secure=self._secure)}
        return Answer(view_of_account(account), status, headers)


def view_of_account(account: Account) -> AccountView:
    """An account as its owner sees it."""
    return AccountView(
        id=account.account_id,
        email=account.email,
        name=account.name,
        created_at=rfc3339(account.created_at),
    )


def _view_of_token(token: Token, secret: str | None) -> TokenView:
    return TokenView(
        id=token.token_id, name=token.name, created_at=rfc3339(token.created_at), token=secret
    )


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"
