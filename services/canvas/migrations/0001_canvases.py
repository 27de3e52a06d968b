"""Canvases, their objects, receipts, resources, assets and usage."""

from alembic import op

from servicekit.migrations import statements

revision = "0001"
down_revision = None


SCRIPT = """
CREATE TABLE canvas.canvas (
    -- The incarnation: another one when a canvas of the same id is created anew.
    key          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id   text        NOT NULL,
    canvas_id    text        NOT NULL,
    revision     bigint      NOT NULL,
    fields       text        NOT NULL,
    title        text        NOT NULL,
    node_count   integer     NOT NULL,
    next_order   bigint      NOT NULL,
    size_bytes   bigint      NOT NULL,
    content_hash bigint      NOT NULL,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    CONSTRAINT canvas_id_is_unique_per_account UNIQUE (account_id, canvas_id),
    CONSTRAINT revision_starts_at_one CHECK (revision >= 1),
    CONSTRAINT sums_are_not_negative CHECK (node_count >= 0 AND size_bytes >= 0)
) WITH (fillfactor = 85);

CREATE INDEX canvas_by_account_newest
    ON canvas.canvas (account_id, updated_at DESC, key DESC);

CREATE TABLE canvas.node (
    canvas_key bigint NOT NULL REFERENCES canvas.canvas ON DELETE CASCADE,
    id         text   NOT NULL,
    place      bigint NOT NULL,
    hash       bigint NOT NULL,
    body       text   NOT NULL,
    PRIMARY KEY (canvas_key, id)
) WITH (fillfactor = 85);

CREATE TABLE canvas.connection (
    canvas_key bigint NOT NULL REFERENCES canvas.canvas ON DELETE CASCADE,
    id         text   NOT NULL,
    place      bigint NOT NULL,
    hash       bigint NOT NULL,
    from_node  text   NOT NULL,
    to_node    text   NOT NULL,
    body       text   NOT NULL,
    PRIMARY KEY (canvas_key, id)
) WITH (fillfactor = 85);

CREATE INDEX connection_by_from ON canvas.connection (canvas_key, from_node);
CREATE INDEX connection_by_to   ON canvas.connection (canvas_key, to_node);

-- Receipts outlive their canvas: a late replay is answered and never revives it.
CREATE TABLE canvas.receipt (
    account_id  text        NOT NULL,
    canvas_id   text        NOT NULL,
    mutation_id text        NOT NULL,
    digest      bytea       NOT NULL,
    revision    bigint      NOT NULL,
    result      bytea       NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (account_id, canvas_id, mutation_id)
);

-- What an account uses, kept by the transactions that change it (CV9).
CREATE TABLE canvas.usage (
    account_id text    PRIMARY KEY,
    canvases   integer NOT NULL DEFAULT 0,
    assets     integer NOT NULL DEFAULT 0,
    json_bytes bigint  NOT NULL DEFAULT 0,
    CONSTRAINT usage_is_not_negative
        CHECK (canvases >= 0 AND assets >= 0 AND json_bytes >= 0)
) WITH (fillfactor = 70);

CREATE TABLE canvas.resource (
    resource_id text        PRIMARY KEY,
    account_id  text        NOT NULL,
    request_id  text        NOT NULL,
    kind        text        NOT NULL,
    mime_type   text        NOT NULL,
    size_bytes  bigint      NOT NULL,
    sha256      text        NOT NULL,
    width       integer,
    height      integer,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT request_id_is_unique_per_account UNIQUE (account_id, request_id),
    CONSTRAINT kind_is_known CHECK (kind IN ('image', 'video', 'audio', 'file')),
    CONSTRAINT digest_is_sha256 CHECK (sha256 ~ '^[0-9a-f]{64}$')
);

CREATE TABLE canvas.asset (
    key         bigint      GENERATED ALWAYS AS IDENTITY UNIQUE,
    account_id  text        NOT NULL,
    asset_id    text        NOT NULL,
    kind        text        NOT NULL,
    category    text        NOT NULL,
    title       text        NOT NULL,
    resource_id text        REFERENCES canvas.resource,
    version     bigint      NOT NULL DEFAULT 1,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, asset_id),
    CONSTRAINT kind_is_known CHECK (kind IN ('image', 'video', 'audio', 'text', 'entity')),
    CONSTRAINT version_starts_at_one CHECK (version >= 1)
);

CREATE INDEX asset_by_account_newest ON canvas.asset (account_id, key DESC);
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
