"""Remembers accounts, sessions and tokens; of secrets only their hashes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from servicekit.lookups import Lookups
from servicekit.postgres import Database

INSERT_ACCOUNT = """
INSERT INTO gateway.account (account_id, email, name, password_hash)
VALUES ($1, $2, $3, $4)
    ON CONFLICT (email) DO NOTHING
RETURNING account_id, email, name, created_at
"""

READ_PASSWORD = """
SELECT account_id, email, name, created_at, password_hash
  FROM gateway.account
 WHERE email = $1
"""

REPLACE_PASSWORD_HASH = """
UPDATE gateway.account
   SET password_hash = $2
 WHERE account_id = $1
"""

MARK_GRANTED = """
UPDATE gateway.account
   SET granted_at = now()
 WHERE account_id = $1
"""

ACCOUNTS_WITHOUT_GRANT = """
SELECT account_id
  FROM gateway.account
 WHERE granted_at IS NULL
 ORDER BY account_id
 LIMIT $1
"""

INSERT_SESSION = """
INSERT INTO gateway.session (secret_hash, account_id, expires_at)
VALUES ($1, $2, now() + $3)
"""

READ_SESSIONS = """
WITH session AS MATERIALIZED (
    SELECT secret_hash, account_id, expires_at - now() AS left_over
      FROM gateway.session
     WHERE secret_hash = ANY($1::bytea[])
       AND expires_at > now()
)
SELECT session.secret_hash,
       session.left_over,
       account.account_id,
       account.email,
       account.name,
       account.created_at
  FROM session
  JOIN gateway.account AS account ON account.account_id = session.account_id
   AND account.account_id = ANY(ARRAY(SELECT account_id FROM session))
"""

EXTEND_SESSION = """
UPDATE gateway.session
   SET expires_at = now() + $2
 WHERE secret_hash = $1
"""

DELETE_SESSION = """
DELETE FROM gateway.session
 WHERE secret_hash = $1
"""

DELETE_EXPIRED_SESSIONS = """
DELETE FROM gateway.session
 WHERE secret_hash = ANY(ARRAY(
       SELECT secret_hash
         FROM gateway.session
        WHERE expires_at <= now()
        LIMIT $1))
"""

INSERT_TOKEN = """
INSERT INTO gateway.token (token_id, account_id, secret_hash, name)
VALUES ($1, $2, $3, $4)
RETURNING token_id, name, created_at
"""

READ_TOKENS = """
WITH token AS MATERIALIZED (
    SELECT secret_hash, account_id
      FROM gateway.token
     WHERE secret_hash = ANY($1::bytea[])
)
SELECT token.secret_hash,
       account.account_id,
       account.email,
       account.name,
       account.created_at
  FROM token
  JOIN gateway.account AS account ON account.account_id = token.account_id
   AND account.account_id = ANY(ARRAY(SELECT account_id FROM token))
"""

LIST_TOKENS = """
SELECT token_id, name, created_at
  FROM gateway.token
 WHERE account_id = $1
 ORDER BY created_at DESC, token_id
"""

DELETE_TOKEN = """
DELETE FROM gateway.token
 WHERE account_id = $1
   AND token_id = $2
RETURNING token_id
"""


@dataclass(frozen=True)
class Account:
    """Somebody who can sign in."""

    account_id: str
    email: str
    name: str
    created_at: datetime


@dataclass(frozen=True)
class Token:
    """A bearer token as lists show it."""

    token_id: str
    name: str
    created_at: datetime


class AccountsStore:
    """Accounts, sessions and tokens. `secret_hash` is SHA-256 over the secret."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Every request asks one of these first.
        self._sessions = Lookups(self._read_sessions)
        self._tokens = Lookups(self._read_tokens)

    async def add_account(
        self, account_id: str, *, email: str, name: str, password_hash: str
    ) -> Account | None:
        """The new account, None if the address has one."""
        row = await self._database.fetchrow(INSERT_ACCOUNT, account_id, email, name, password_hash)
        return Account(**row) if row else None

    async def password(self, email: str) -> tuple[Account, str] | None:
        """The account of an address with the hash of its password."""
        row = await self._database.fetchrow(READ_PASSWORD, email)
        if row is None:
            return None
        members = dict(row)
        password_hash = members.pop("password_hash")
        return Account(**members), password_hash

    async def replace_password_hash(self, account_id: str, password_hash: str) -> None:
        """Stores the hash of the same password by newer parameters."""
        await self._database.execute(REPLACE_PASSWORD_HASH, account_id, password_hash)

    async def mark_granted(self, account_id: str) -> None:
        """Notes that the account has its first credits."""
        await self._database.execute(MARK_GRANTED, account_id)

    async def without_grant(self, limit: int) -> list[str]:
        """Ids of accounts that have not got their first credits."""
        rows = await self._database.fetch(ACCOUNTS_WITHOUT_GRANT, limit)
        return [row["account_id"] for row in rows]

    async def add_session(self, secret_hash: bytes, account_id: str, lasts: timedelta) -> None:
        """Starts a session."""
        await self._database.execute(INSERT_SESSION, secret_hash, account_id, lasts)

    async def session(self, secret_hash: bytes) -> tuple[Account, timedelta] | None:
        """The account of a session and how long it still lasts; None if it is over."""
        return await self._sessions.get(secret_hash)

    async def extend_session(self, secret_hash: bytes, lasts: timedelta) -> None:
        """Has a session last from now on."""
        await self._database.execute(EXTEND_SESSION, secret_hash, lasts)

    async def end_session(self, secret_hash: bytes) -> None:
        """Ends a session, if there is one."""
        await self._database.execute(DELETE_SESSION, secret_hash)

    async def sweep_sessions(self, limit: int) -> None:
        """Forgets up to `limit` sessions that are over."""
        await self._database.execute(DELETE_EXPIRED_SESSIONS, limit)

    async def add_token(
        self, token_id: str, account_id: str, *, secret_hash: bytes, name: str
    ) -> Token:
        """Stores a bearer token."""
        row = await self._database.fetchrow(INSERT_TOKEN, token_id, account_id, secret_hash, name)
        assert row is not None
        return Token(**row)

    async def token_account(self, secret_hash: bytes) -> Account | None:
        """The account of a bearer token."""
        return await self._tokens.get(secret_hash)

    async def tokens(self, account_id: str) -> list[Token]:
        """An account's tokens, newest first."""
        rows = await self._database.fetch(LIST_TOKENS, account_id)
        return [Token(**row) for row in rows]

    async def delete_token(self, account_id: str, token_id: str) -> bool:
        """Deletes a token; whether there was one."""
        return await self._database.fetchrow(DELETE_TOKEN, account_id, token_id) is not None

    async def _read_sessions(
        self, hashes: Sequence[bytes]
    ) -> dict[bytes, tuple[Account, timedelta]]:
        rows = await self._database.fetch(READ_SESSIONS, list(hashes))
        return {row["secret_hash"]: (_account(row), row["left_over"]) for row in rows}

    async def _read_tokens(self, hashes: Sequence[bytes]) -> dict[bytes, Account]:
        rows = await self._database.fetch(READ_TOKENS, list(hashes))
        return {row["secret_hash"]: _account(row) for row in rows}


def _account(row: asyncpg.Record) -> Account:
    return Account(row["account_id"], row["email"], row["name"], row["created_at"])
