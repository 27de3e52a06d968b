"""In which transactions a summary changed and ended."""

from alembic import op

from servicekit.migrations import statements

revision = "0002"
down_revision = "0001"

# Jobs that ended before have no `ended_in`: nobody has a cursor from then. No CHECK asks for one:
# while processes are replaced, those of the version before end jobs too.
SCRIPT = """
ALTER TABLE generation.summary
    ADD COLUMN changed_in xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ADD COLUMN ended_in   xid8;

CREATE INDEX summary_by_ending ON generation.summary (account_id, ended_in, job_key)
    WHERE ended_in IS NOT NULL;
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
