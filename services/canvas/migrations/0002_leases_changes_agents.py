"""Edit leases, the log of changes, agent runs, and what prunes receipts."""

from alembic import op

from servicekit.migrations import statements

revision = "0002"
down_revision = "0001"

SCRIPT = """
-- Rises with every lease that is given, so that no write passes one that it has not seen.
ALTER TABLE canvas.canvas ADD COLUMN lease_version bigint NOT NULL DEFAULT 0;

CREATE TABLE canvas.lease (
    canvas_key bigint      NOT NULL REFERENCES canvas.canvas ON DELETE CASCADE,
    node_id    text        NOT NULL,
    session_id text        NOT NULL,
    token      text        NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (canvas_key, node_id)
) WITH (fillfactor = 70);

CREATE TABLE canvas.change (
    canvas_key  bigint      NOT NULL REFERENCES canvas.canvas ON DELETE CASCADE,
    revision    bigint      NOT NULL,
    mutation_id text        NOT NULL,
    operations  text        NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (canvas_key, revision)
);

-- Rows come in the order of their time: a few bytes for each hundred pages find the oldest.
CREATE INDEX change_by_age  ON canvas.change  USING brin (at) WITH (autosummarize = on);
CREATE INDEX receipt_by_age ON canvas.receipt USING brin (created_at) WITH (autosummarize = on);

CREATE TABLE canvas.agent (
    canvas_key bigint      PRIMARY KEY REFERENCES canvas.canvas ON DELETE CASCADE,
    task_id    text        NOT NULL,
    state      text        NOT NULL,
    since      timestamptz NOT NULL,
    CONSTRAINT state_is_known
        CHECK (state IN ('queued', 'running', 'awaiting_approval', 'finishing'))
);
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
