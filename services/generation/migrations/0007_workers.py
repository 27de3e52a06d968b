"""When each worker was last seen."""

from alembic import op

from servicekit.migrations import statements

revision = "0007"
down_revision = "0006"

SCRIPT = """
CREATE TABLE generation.worker (
    worker_id text        PRIMARY KEY,
    seen_at   timestamptz NOT NULL DEFAULT statement_timestamp()
);

CREATE INDEX worker_by_seen ON generation.worker (seen_at);
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
