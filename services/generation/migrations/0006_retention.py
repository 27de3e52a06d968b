"""Claims are found by their age, to be forgotten."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute("CREATE INDEX claim_by_age ON generation.claim (created_at)")
