"""Canvases are found by account and id alone; lists sort what an account has."""

from alembic import op

from servicekit.migrations import statements

revision = "0003"
down_revision = "0002"

SCRIPT = """
-- It held the time of the last change, so that each edit wrote all indexes of the canvas anew; and
-- it tempted the planner to look through an account's canvases for one of them.
DROP INDEX canvas.canvas_by_account_newest;
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
