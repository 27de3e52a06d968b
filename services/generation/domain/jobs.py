"""Jobs of the queue: what is asked for, what a worker gets, what it gives back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from servicekit.errors import Invalid

SOURCE = "editor-canvas"
MAX_ERROR_LENGTH = 500

# What people read; the raw errors of providers are not theirs to see.
ATTEMPT_EXPIRED = "The job ran out of time."
CANVAS_REFUSED = "The result could not be put on the canvas."
UNEXPLAINED = "The job failed."


class Status(StrEnum):
    """Where a job is, as its owner sees it; one on its way to the canvas is running."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class Held(StrEnum):
    """Whether a lease held when its worker said something of the job."""

    OK = "ok"
    # It is over, or another's.
    FENCED = "fenced"
    # The job's owner cancelled it.
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """What a running attempt does."""

    GENERATING = "generating"
    PROCESSING = "processing"


@dataclass(frozen=True)
class Kind:
    """What is special about a kind of job."""

    max_attempts: int
    is_long: bool


# A failed job of the editor is never tried again by itself (seed 004).
KINDS = {"editor_image_generation": Kind(max_attempts=1, is_long=True)}


@dataclass(frozen=True)
class Position:
    """World coordinates."""

    x: float = 0
    y: float = 0


@dataclass(frozen=True)
class Target:
    """Where a result goes: to a placeholder node, or else to a new node at a position."""

    node_id: str | None
    position: Position


@dataclass(frozen=True)
class Draft:
    """A job that is asked for. `params` is JSON; without a target nothing goes on the canvas.

    The lower its priority, the sooner it is claimed.
    """

    dedupe_key: str
    kind: str
    params: str
    label: str
    canvas_id: str
    target: Target | None
    channel: str
    priority: int
    price_micros: int
    digest: bytes


@dataclass(frozen=True)
class Summary:
    """What its owner may see of a job; `key` grows with each job."""

    key: int
    job_id: str
    kind: str
    source: str
    label: str
    status: Status
    phase: Phase | None
    progress: int
    error: str | None
    warning: str | None
    price_micros: int
    refund_entry_id: str | None
    canvas_id: str
    node_id: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    acknowledged_at: datetime | None


@dataclass(frozen=True)
class Placed:
    """A job as its owner may see it, with its place in the queue while it waits, 1 the first."""

    summary: Summary
    position: int | None = None
    eta: timedelta | None = None


@dataclass(frozen=True)
class Shown:
    """Which jobs a list shows: those in these statuses, seen ends among them or not."""

    statuses: Sequence[Status]
    with_acknowledged: bool


@dataclass(frozen=True)
class Overview:
    """How many jobs an account has under way, and when any of its jobs last changed.

    `unacknowledged` are those that are over unseen, counted to 1,000.
    """

    pending: int
    running: int
    unacknowledged: int
    updated_at: datetime | None


@dataclass(frozen=True)
class Lease:
    """One attempt at a job: whose it is, and the fencing token of its claim."""

    worker_id: str
    job_id: str
    token: int


@dataclass(frozen=True)
class ClaimedJob:
    """An attempt as its worker gets it. `params` is JSON, checked when it was enqueued."""

    job_id: str
    lease_token: int
    account_id: str
    kind: str
    params: str
    canvas_id: str
    attempt: int


@dataclass(frozen=True)
class Output:
    """One thing that was made, registered with the canvas service; sizes in pixels."""

    resource_id: str
    asset_id: str
    mime_type: str
    width: int
    height: int

    def __post_init__(self) -> None:
        if not (self.resource_id and self.asset_id and self.mime_type):
            raise Invalid("An output names its resource, asset and type.", path="outputs")
        if self.width < 1 or self.height < 1:
            raise Invalid("An output has pixels.", path="outputs")


def outputs_from_json(text: str) -> tuple[Output, ...]:
    """Outputs as an attempt's outcome holds them."""
    return tuple(Output(**output) for output in json.loads(text))


@dataclass(frozen=True)
class JobResult:
    """Where a job is, and what it made or why it failed."""

    status: Status
    error: str | None
    outputs: tuple[Output, ...]
    warning: str | None


@dataclass(frozen=True)
class Completion:
    """An attempt that ended with a result, the main output first."""

    lease: Lease
    outputs: tuple[Output, ...]
    warning: str | None

    def __post_init__(self) -> None:
        if not self.outputs:
            raise Invalid("A result has an output.", path="outputs")


@dataclass(frozen=True)
class Failing:
    """An attempt that ended with an error."""

    lease: Lease
    error: str

    def __post_init__(self) -> None:
        text = self.error.strip()[:MAX_ERROR_LENGTH] or UNEXPLAINED
        object.__setattr__(self, "error", text)
