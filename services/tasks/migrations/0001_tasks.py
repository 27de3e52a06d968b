"""Tasks, the accounts that take turns, texts as numbered events, logs."""

from alembic import op

from servicekit.migrations import statements

revision = "0001"
down_revision = None


SCRIPT = """
-- Who has work: locked by whatever changes the numbers, so that limits are exact (TK3, TK5).
CREATE TABLE tasks.account (
    account_id text        PRIMARY KEY,
    waiting    integer     NOT NULL DEFAULT 0,
    running    integer     NOT NULL DEFAULT 0,
    served_at  timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT numbers_are_not_negative CHECK (waiting >= 0 AND running >= 0)
) WITH (fillfactor = 70);

CREATE INDEX account_whose_turn_it_is ON tasks.account (served_at) WHERE waiting > 0;

-- Narrow, since every change copies the row: what is long is kept beside it.
CREATE TABLE tasks.task (
    key                 bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id             text        NOT NULL,
    account_id          text        NOT NULL,
    request_id          text        NOT NULL,
    digest              bytea       NOT NULL,
    type                text        NOT NULL,
    model               text        NOT NULL,
    canvas_id           text,
    node_id             text,
    client_operation_id text,
    status              text        NOT NULL DEFAULT 'queued',
    stage               text        NOT NULL,
    progress            integer     NOT NULL,
    attempts            integer     NOT NULL DEFAULT 0,
    handed_back         integer     NOT NULL DEFAULT 0,
    owner               text,
    lease_until         timestamptz,
    last_sequence       bigint      NOT NULL DEFAULT 0,
    text_bytes          integer     NOT NULL DEFAULT 0,
    error               text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at          timestamptz,
    ended_at            timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT task_id_is_unique UNIQUE (task_id),
    CONSTRAINT request_id_is_unique_per_account UNIQUE (account_id, request_id),
    CONSTRAINT type_is_known CHECK (type IN ('text')),
    CONSTRAINT status_is_known CHECK (status IN ('queued', 'running', 'succeeded', 'failed')),
    CONSTRAINT progress_is_a_percentage CHECK (progress BETWEEN 0 AND 100),
    CONSTRAINT running_means_owned
        CHECK ((status = 'running') = (owner IS NOT NULL)
           AND (status = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT over_means_ended
        CHECK ((status IN ('succeeded', 'failed')) = (ended_at IS NOT NULL)),
    CONSTRAINT failed_means_an_error CHECK ((status = 'failed') = (error IS NOT NULL)),
    CONSTRAINT succeeded_means_done CHECK (status <> 'succeeded' OR progress = 100),
    CONSTRAINT started_means_attempted CHECK ((attempts > 0) = (started_at IS NOT NULL)),
    CONSTRAINT not_queued_means_attempted CHECK (status = 'queued' OR attempts > 0),
    CONSTRAINT handed_back_were_attempts CHECK (handed_back BETWEEN 0 AND attempts),
    CONSTRAINT text_is_within_its_limit CHECK (text_bytes BETWEEN 0 AND 2097152),
    CONSTRAINT text_needs_an_attempt CHECK (last_sequence = 0 OR attempts > 0)
) WITH (fillfactor = 70);

CREATE INDEX task_by_account ON tasks.task (account_id, key DESC);
CREATE INDEX task_by_canvas ON tasks.task (account_id, canvas_id, key DESC)
    WHERE canvas_id IS NOT NULL;
CREATE INDEX task_by_node ON tasks.task (account_id, node_id, key DESC)
    WHERE node_id IS NOT NULL;
CREATE INDEX task_that_is_live ON tasks.task (account_id, key)
    WHERE status IN ('queued', 'running');
CREATE INDEX task_by_lease ON tasks.task (lease_until)
    WHERE status = 'running';

CREATE TABLE tasks.prompt (
    task_key bigint PRIMARY KEY REFERENCES tasks.task ON DELETE CASCADE,
    prompt   text   NOT NULL
);

-- The final text of a task that succeeded, the draft of one that failed.
CREATE TABLE tasks.result (
    task_key bigint PRIMARY KEY REFERENCES tasks.task ON DELETE CASCADE,
    text     text   NOT NULL
);

CREATE TABLE tasks.log (
    key      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_key bigint      NOT NULL REFERENCES tasks.task ON DELETE CASCADE,
    level    text        NOT NULL,
    code     text        NOT NULL,
    message  text        NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT level_is_known CHECK (level IN ('info', 'warn', 'error'))
);

CREATE INDEX log_of_task ON tasks.log (task_key, key);

-- No reference to the task: each insert holds the task's row already, by the fence.
CREATE TABLE tasks.text_event (
    task_key bigint  NOT NULL,
    sequence bigint  NOT NULL,
    attempt  integer NOT NULL,
    content  text,
    PRIMARY KEY (task_key, sequence),
    CONSTRAINT sequence_starts_at_one CHECK (sequence >= 1),
    CONSTRAINT first_attempt_needs_no_reset CHECK (content IS NOT NULL OR attempt > 1),
    CONSTRAINT content_is_within_its_limit CHECK (octet_length(content) BETWEEN 1 AND 65536)
);

COMMENT ON COLUMN tasks.text_event.content IS 'NULL for a reset';
"""


def upgrade() -> None:
    for statement in statements(SCRIPT):
        op.execute(statement)
