"""An index that only a look for one account uses."""

from alembic import op

from servicekit.migrations import statements

revision = "0003"
down_revision = "0002"

# Whole, it could answer a look for a task by its key alone too, in as many steps as there are
# accounts, and on an empty table the planner cannot tell that from one step.
SCRIPT = """
DROP INDEX tasks.task_by_account;

CREATE INDEX task_by_account ON tasks.task (account_id, key DESC) WHERE account_id IS NOT NULL;
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
