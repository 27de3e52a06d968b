"""Jobs that their owners cancel, and ends that their owners have seen."""

from alembic import op

from servicekit.migrations import statements

revision = "0003"
down_revision = "0002"

SCRIPT = """
ALTER TABLE generation.job
    DROP CONSTRAINT status_is_known,
    DROP CONSTRAINT the_delivering_have_a_delivery,
    DROP CONSTRAINT pending_or_tried,
    ADD CONSTRAINT status_is_known CHECK
        (status IN ('pending', 'running', 'delivering', 'completed', 'failed', 'cancelled')),
    ADD CONSTRAINT the_delivering_have_a_delivery
        CHECK (CASE WHEN status = 'delivering'               THEN deliver_at IS NOT NULL
                    WHEN status IN ('failed', 'cancelled')   THEN true
                    ELSE deliver_at IS NULL
               END),
    ADD CONSTRAINT only_the_tried_end CHECK (status IN ('pending', 'cancelled') OR attempt > 0);

ALTER TABLE generation.summary
    ADD COLUMN acknowledged_at timestamptz,
    DROP CONSTRAINT status_is_known,
    DROP CONSTRAINT what_is_over_has_an_end,
    DROP CONSTRAINT what_failed_is_refunded,
    ADD CONSTRAINT status_is_known
        CHECK (status IN ('pending', 'running', 'completed', 'failed', 'cancelled')),
    ADD CONSTRAINT what_is_over_has_an_end
        CHECK ((status IN ('completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)),
    ADD CONSTRAINT what_made_nothing_is_refunded
        CHECK ((status IN ('failed', 'cancelled')) = (refund_entry_id IS NOT NULL)),
    ADD CONSTRAINT only_ends_are_acknowledged
        CHECK (acknowledged_at IS NULL OR ended_at IS NOT NULL);

-- The end that came last is found by the transaction that it came in.
DROP INDEX generation.summary_by_end;

-- Whole, it could answer a look for a job by its key alone too, in as many steps as there are
-- accounts, and on an empty table the planner cannot tell that from one step.
DROP INDEX generation.summary_by_account;

CREATE INDEX summary_by_account ON generation.summary (account_id, status, job_key DESC)
    WHERE account_id IS NOT NULL;

CREATE INDEX summary_unread ON generation.summary (account_id, status, job_key DESC)
    WHERE ended_at IS NOT NULL AND acknowledged_at IS NULL;

ALTER TABLE generation.event
    DROP CONSTRAINT kind_is_known,
    ADD CONSTRAINT kind_is_known
        CHECK (kind IN ('enqueued', 'claimed', 'lease_renewed', 'phase_reported', 'result_stored',
                        'failure_reported', 'attempt_expired', 'completed', 'failed', 'cancelled',
                        'acknowledged', 'placeholder_marked'));
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
