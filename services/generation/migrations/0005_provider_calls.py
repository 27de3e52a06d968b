"""What providers were asked for, so that nothing is ever asked for twice."""

from alembic import op

from servicekit.migrations import statements

revision = "0005"
down_revision = "0004"

SCRIPT = """
ALTER TABLE generation.job ADD COLUMN resumes integer NOT NULL DEFAULT 0;

-- A row before the provider is asked. One without an outcome whose job is not worked on any more is
-- uncertain: nobody knows what became of it.
CREATE TABLE generation.provider_call (
    job_key     bigint      NOT NULL,
    number      integer     NOT NULL,
    model       text        NOT NULL,
    lease_token bigint      NOT NULL,
    begun_at    timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- What the provider calls it, once it has said so.
    request_id  text,
    outcome     text,
    detail      text,
    settled_at  timestamptz,
    PRIMARY KEY (job_key, number),
    CONSTRAINT outcome_is_known CHECK (outcome IN ('succeeded', 'failed', 'cancelled')),
    CONSTRAINT the_settled_have_a_time CHECK ((outcome IS NULL) = (settled_at IS NULL))
);

CREATE INDEX provider_call_unsettled ON generation.provider_call (job_key, number)
    WHERE outcome IS NULL;

ALTER TABLE generation.event
    DROP CONSTRAINT kind_is_known,
    ADD CONSTRAINT kind_is_known
        CHECK (kind IN ('enqueued', 'claimed', 'lease_renewed', 'phase_reported', 'result_stored',
                        'failure_reported', 'attempt_expired', 'completed', 'failed', 'cancelled',
                        'acknowledged', 'placeholder_marked', 'provider_called',
                        'provider_accepted', 'provider_settled', 'provider_resolved'));
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
