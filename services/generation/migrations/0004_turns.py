"""Jobs that wait for a turn of their account, channels of providers, and priorities."""

from alembic import op

from servicekit.migrations import statements

revision = "0004"
down_revision = "0003"

# Those of the version before write neither channel nor priority while processes are replaced.
SCRIPT = """
ALTER TABLE generation.job
    ADD COLUMN channel    text        NOT NULL DEFAULT 'studio',
    -- The lower, the sooner.
    ADD COLUMN priority   integer     NOT NULL DEFAULT 0,
    ADD COLUMN claimed_at timestamptz,
    DROP CONSTRAINT status_is_known,
    DROP CONSTRAINT only_the_tried_end,
    ADD CONSTRAINT status_is_known CHECK
        (status IN ('waiting', 'pending', 'running', 'delivering', 'completed', 'failed',
                    'cancelled')),
    ADD CONSTRAINT only_the_tried_end
        CHECK (status IN ('waiting', 'pending', 'cancelled') OR attempt > 0);

DROP INDEX generation.job_pending;
DROP INDEX generation.job_leased;

CREATE INDEX job_pending   ON generation.job (channel, priority, available_at, key)
    WHERE status = 'pending';
CREATE INDEX job_leased    ON generation.job (channel, lease_until) WHERE status = 'running';
-- The jobs of an account that wait for its other jobs.
CREATE INDEX job_waiting   ON generation.job (account_id, priority, key) WHERE status = 'waiting';
-- The turns that an account has taken.
CREATE INDEX job_under_way ON generation.job (account_id) WHERE status IN ('pending', 'running');

-- Channels that only so many jobs may use at once: claims take turns on their rows.
CREATE TABLE generation.channel (
    name text PRIMARY KEY
);
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
