"""Accounts, their sessions and tokens."""

from alembic import op

from servicekit.migrations import statements

revision = "0001"
down_revision = None

SCRIPT = """
CREATE TABLE gateway.account (
    account_id    text        PRIMARY KEY,
    email         text        NOT NULL,
    name          text        NOT NULL,
    password_hash text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    -- Set when the wallet has confirmed the credits that a new account gets.
    granted_at    timestamptz,
    CONSTRAINT email_is_unique UNIQUE (email),
    CONSTRAINT email_is_lower_case CHECK (email = lower(email))
);

CREATE INDEX account_without_grant ON gateway.account (account_id) WHERE granted_at IS NULL;

CREATE TABLE gateway.session (
    secret_hash bytea       PRIMARY KEY,
    account_id  text        NOT NULL REFERENCES gateway.account ON DELETE CASCADE,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    CONSTRAINT hash_is_sha256 CHECK (length(secret_hash) = 32)
);

CREATE INDEX session_by_account ON gateway.session (account_id);
CREATE INDEX session_by_expiry  ON gateway.session (expires_at);

CREATE TABLE gateway.token (
    token_id    text        PRIMARY KEY,
    account_id  text        NOT NULL REFERENCES gateway.account ON DELETE CASCADE,
    secret_hash bytea       NOT NULL,
    name        text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT secret_is_unique UNIQUE (secret_hash),
    CONSTRAINT hash_is_sha256 CHECK (length(secret_hash) = 32)
);

CREATE INDEX token_by_account ON gateway.token (account_id, created_at DESC);
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
