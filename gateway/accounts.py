"""Who has an account, and how somebody shows to be that one."""

import asyncio
import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.accounts_store import Account, AccountsStore, Token
from gateway.failures import EmailTaken, InvalidCredentials
from servicekit.errors import Failure, Invalid, NotFound, TooMany
from servicekit.ids import new_id
from servicekit.pauses import spread
from servicekit.telemetry import logger

SESSION = timedelta(days=30)
# How much of a session may pass before it is extended: one write an hour at most.
EXTEND_AFTER = timedelta(hours=1)
# Enough for a million sign-ins a day.
SWEEP_SECONDS = 600.0
SWEPT_AT_ONCE = 10_000
MAX_EMAIL_LENGTH = 254
MIN_PASSWORD_LENGTH = 8
MAX_PASSWORD_LENGTH = 200
MAX_NAME_LENGTH = 80
MAX_TOKENS = 50
TOKEN_PREFIX = "gso_"  # noqa: S105 - tells scanners what such a secret is

# Each hash takes 64 MiB while it is made.
_HASHES_AT_ONCE = 2

_log = logger("gateway.accounts")


@dataclass(frozen=True)
class Session:
    """Who is signed in, and whether the cookie should be set anew."""

    account: Account
    extended: bool


class Accounts:
    """The accounts of the suite."""

    def __init__(self, store: AccountsStore) -> None:
        self._store = store
        self._hasher = PasswordHasher()
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._nobodys_hash = self._hasher.hash(secrets.token_hex(16))

    async def register(self, *, email: str, password: str, name: str | None) -> Account:
        """Makes an account. Raises `Invalid` and `EmailTaken`."""
        email = _checked_email(email)
        _check_password(password)
        name = (name or email.partition("@")[0]).strip()[:MAX_NAME_LENGTH]
        account = await self._store.add_account(
            new_id("us"), email=email, name=name, password_hash=await self._hash(password)
        )
        if account is None:
            raise EmailTaken
        return account

    async def log_in(self, *, email: str, password: str) -> Account:
        """The account of the credentials. Raises `InvalidCredentials`."""
        found = await self._store.password(email.strip().lower())
        # Somebody without an account waits as long as somebody with one.
        account, password_hash = found or (None, self._nobodys_hash)
        right = await self._verify(password_hash, password)
        if account is None or not right:
            raise InvalidCredentials
        if self._hasher.check_needs_rehash(password_hash):
            await self._store.replace_password_hash(account.account_id, await self._hash(password))
        return account

    async def start_session(self, account: Account) -> str:
        """The secret of a new session of 30 days, which slide with use."""
        secret = secrets.token_urlsafe(32)
        await self._store.add_session(_hash_of(secret), account.account_id, SESSION)
        return secret

    async def session(self, secret: str, *, slides: bool) -> Session | None:
        """Who is signed in with the secret, None if nobody is any more.

        A session that `slides` lasts 30 days from now on.
        """
        found = await self._store.session(_hash_of(secret))
        if found is None:
            return None
        account, left_over = found
        extended = slides and left_over < SESSION - EXTEND_AFTER
        if extended:
            await self._store.extend_session(_hash_of(secret), SESSION)
        return Session(account, extended)

    async def forget_ended_sessions(self) -> None:
        """Looks now and then for sessions that are over, for ever."""
        while True:
            try:
                await self._store.sweep_sessions(SWEPT_AT_ONCE)
            except Failure as failure:
                _log.warning("sessions that are over were not forgotten", why=failure.detail)
            await asyncio.sleep(spread(SWEEP_SECONDS))

    async def end_session(self, secret: str) -> None:
        """Ends a session; the secret is worth nothing from now on."""
        await self._store.end_session(_hash_of(secret))

    async def make_token(self, account: Account, name: str) -> tuple[Token, str]:
        """A bearer token and its secret, which is never shown again."""
        name = name.strip()
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise Invalid(f"A name has 1 to {MAX_NAME_LENGTH} characters.", path="name")
        if len(await self.tokens(account)) >= MAX_TOKENS:
            raise TooMany(
                f"An account has at most {MAX_TOKENS} tokens; delete one first.", limit=MAX_TOKENS
            )
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        token = await self._store.add_token(
            new_id("to"), account.account_id, secret_hash=_hash_of(secret), name=name
        )
        return token, secret

    async def token_account(self, secret: str) -> Account | None:
        """The account of a bearer token, None if there is no such token."""
        if not secret.startswith(TOKEN_PREFIX):
            return None
        return await self._store.token_account(_hash_of(secret))

    async def tokens(self, account: Account) -> list[Token]:
        """The account's tokens, newest first; all of them, since each opens everything."""
        return await self._store.tokens(account.account_id)

    async def delete_token(self, account: Account, token_id: str) -> None:
        """Deletes a token. Raises `NotFound`."""
        if not await self._store.delete_token(account.account_id, token_id):
            raise NotFound("token")

    async def _hash(self, password: str) -> str:
        async with self._hashing:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def _verify(self, password_hash: str, password: str) -> bool:
        async with self._hashing:
            try:
                return await asyncio.to_thread(self._hasher.verify, password_hash, password)
            except (VerificationError, InvalidHashError):
                return False


def _checked_email(email: str) -> str:
    email = email.strip().lower()
    name, _, host = email.rpartition("@")
    is_host = host == "localhost" or "." in host.strip(".")
    if not (name and is_host and len(email) <= MAX_EMAIL_LENGTH) or any(map(str.isspace, email)):
        raise Invalid("This is not an e-mail address.", path="email")
    return email


def _check_password(password: str) -> None:
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise Invalid(
            f"A password has {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters.",
            path="password",
        )


def _hash_of(secret: str) -> bytes:
    # The secrets have 256 random bits: a plain hash cannot be searched.
    return hashlib.sha256(secret.encode()).digest()
