"""Jobs with what belongs to them, and the money of accounts."""

from alembic import op

from servicekit.migrations import statements

revision = "0001"
down_revision = None


# Rows that every transition rewrites are vacuumed by their number, not by their share.
_HOT = """(
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
)"""

SCRIPT = f"""
CREATE TABLE generation.account (
    account_id     text   PRIMARY KEY,
    balance_micros bigint NOT NULL DEFAULT 0,
    CONSTRAINT balance_is_not_negative CHECK (balance_micros >= 0)
) WITH (fillfactor = 70);

CREATE TABLE generation.ledger (
    key                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entry_id             text        NOT NULL UNIQUE
                                     DEFAULT 'le_' || replace(gen_random_uuid()::text, '-', ''),
    account_id           text        NOT NULL REFERENCES generation.account,
    kind                 text        NOT NULL,
    delta_micros         bigint      NOT NULL,
    balance_after_micros bigint      NOT NULL,
    reference            text        NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT reference_is_unique UNIQUE (reference),
    CONSTRAINT kind_is_known CHECK (kind IN ('grant', 'charge', 'refund')),
    CONSTRAINT charges_take_and_others_give CHECK
        (CASE kind WHEN 'charge' THEN delta_micros < 0 ELSE delta_micros > 0 END),
    CONSTRAINT balance_is_not_negative CHECK (balance_after_micros >= 0)
);

CREATE INDEX ledger_by_account_newest ON generation.ledger (account_id, key DESC);

-- What the transitions need, narrow: each of them writes the row anew.
CREATE TABLE generation.job (
    key            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id         text        NOT NULL UNIQUE,
    account_id     text        NOT NULL,
    dedupe_key     text        NOT NULL,
    kind           text        NOT NULL,
    canvas_id      text        NOT NULL,
    node_id        text,
    delivers       boolean     NOT NULL,
    price_micros   bigint      NOT NULL,
    status         text        NOT NULL DEFAULT 'pending',
    attempt        integer     NOT NULL DEFAULT 0,
    max_attempts   integer     NOT NULL,
    available_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    worker_id      text,
    -- Grows with every claim: the fencing token.
    lease_token    bigint      NOT NULL DEFAULT 0,
    lease_until    timestamptz,
    -- When the next delivery may begin; set while something has to reach the canvas.
    deliver_at     timestamptz,
    -- Grows with every delivery that begins or ends: its fencing token.
    delivery_token bigint      NOT NULL DEFAULT 0,
    CONSTRAINT dedupe_key_is_unique_per_account UNIQUE (account_id, dedupe_key),
    CONSTRAINT status_is_known
        CHECK (status IN ('pending', 'running', 'delivering', 'completed', 'failed')),
    CONSTRAINT only_the_running_have_a_worker
        CHECK ((status = 'running') = (worker_id IS NOT NULL)),
    CONSTRAINT only_the_running_have_a_lease
        CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT the_delivering_have_a_delivery
        CHECK (CASE status WHEN 'delivering' THEN deliver_at IS NOT NULL
                           WHEN 'failed'     THEN true
                           ELSE deliver_at IS NULL
               END),
    CONSTRAINT attempts_are_limited CHECK (attempt BETWEEN 0 AND max_attempts),
    CONSTRAINT pending_or_tried CHECK (status = 'pending' OR attempt > 0),
    CONSTRAINT price_is_positive CHECK (price_micros > 0)
) WITH {_HOT};

CREATE INDEX job_pending    ON generation.job (available_at, key) WHERE status = 'pending';
CREATE INDEX job_leased     ON generation.job (lease_until)       WHERE status = 'running';
CREATE INDEX job_to_deliver ON generation.job (deliver_at)        WHERE deliver_at IS NOT NULL;

-- What was asked. Inserted only.
CREATE TABLE generation.payload (
    job_key    bigint           PRIMARY KEY,
    digest     bytea            NOT NULL,
    params     text             NOT NULL,
    position_x double precision NOT NULL,
    position_y double precision NOT NULL
);

-- How an attempt ended by its worker's word. Inserted only.
CREATE TABLE generation.outcome (
    job_key     bigint      NOT NULL,
    lease_token bigint      NOT NULL,
    worker_id   text        NOT NULL,
    outputs     text,
    warning     text,
    error       text,
    created_at  timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (job_key, lease_token),
    CONSTRAINT outputs_or_error CHECK (num_nonnulls(outputs, error) = 1),
    CONSTRAINT warnings_come_with_outputs CHECK (warning IS NULL OR outputs IS NOT NULL)
);

-- What a claim got, so that a repeat gets the same. Inserted only.
CREATE TABLE generation.claim (
    worker_id    text        NOT NULL,
    claim_id     text        NOT NULL,
    job_keys     bigint[]    NOT NULL,
    lease_tokens bigint[]    NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (worker_id, claim_id)
);

-- What its owner may see of a job: the only table that answers people.
CREATE TABLE generation.summary (
    job_key         bigint      PRIMARY KEY,
    job_id          text        NOT NULL UNIQUE,
    account_id      text        NOT NULL,
    kind            text        NOT NULL,
    source          text        NOT NULL,
    label           text        NOT NULL,
    status          text        NOT NULL DEFAULT 'pending',
    phase           text,
    progress        integer     NOT NULL DEFAULT 0,
    error           text,
    warning         text,
    price_micros    bigint      NOT NULL,
    refund_entry_id text,
    canvas_id       text        NOT NULL,
    node_id         text,
    created_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    started_at      timestamptz,
    ended_at        timestamptz,
    updated_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT status_is_known CHECK (status IN ('pending', 'running', 'completed', 'failed')),
    CONSTRAINT phase_is_known CHECK (phase IN ('generating', 'processing')),
    CONSTRAINT only_the_running_have_a_phase CHECK ((status = 'running') = (phase IS NOT NULL)),
    CONSTRAINT progress_is_a_percentage CHECK (progress BETWEEN 0 AND 100),
    CONSTRAINT what_is_over_has_an_end
        CHECK ((status IN ('completed', 'failed')) = (ended_at IS NOT NULL)),
    CONSTRAINT what_failed_says_why CHECK ((status = 'failed') = (error IS NOT NULL)),
    CONSTRAINT what_failed_is_refunded CHECK ((status = 'failed') = (refund_entry_id IS NOT NULL)),
    CONSTRAINT only_the_completed_have_a_warning CHECK (warning IS NULL OR status = 'completed')
) WITH {_HOT};

CREATE INDEX summary_by_account ON generation.summary (account_id, status, job_key DESC);
CREATE INDEX summary_by_end ON generation.summary (account_id, ended_at DESC)
    WHERE ended_at IS NOT NULL;

-- What happened to each job, for those who look into it. Appended only.
CREATE TABLE generation.event (
    key         bigint      GENERATED ALWAYS AS IDENTITY,
    job_key     bigint      NOT NULL,
    kind        text        NOT NULL,
    worker_id   text,
    lease_token bigint,
    detail      text,
    created_at  timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (job_key, key),
    CONSTRAINT kind_is_known
        CHECK (kind IN ('enqueued', 'claimed', 'lease_renewed', 'phase_reported', 'result_stored',
                        'failure_reported', 'attempt_expired', 'completed', 'failed',
                        'placeholder_marked'))
);
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
