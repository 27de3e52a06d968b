"""What a task is: how it is asked for, where it can be, what is said of it."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from servicekit.errors import Failure, Invalid
from services.tasks.domain.failures import BacklogFull

MAX_PROMPT_BYTES = 64 * 1024
MAX_NAME_LENGTH = 200
SHOWN_PROMPT_LENGTH = 200
TYPES = frozenset({"text"})

Status = Literal["queued", "running", "succeeded", "failed"]
Level = Literal["info", "warn", "error"]


@dataclass(frozen=True)
class Order:
    """What is asked for. An empty model means the default. Raises `Invalid` when wrong (TK2)."""

    request_id: str
    type: str
    prompt: str
    model: str = ""
    canvas_id: str | None = None
    node_id: str | None = None
    client_operation_id: str | None = None

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise Invalid(f"There are no tasks of type {self.type[:80]!r}.", path="type")
        if not 0 < len(self.prompt.encode()) <= MAX_PROMPT_BYTES:
            raise Invalid(f"A prompt has 1 to {MAX_PROMPT_BYTES} bytes.", path="prompt")
        names = {
            "requestId": self.request_id,
            "canvasId": self.canvas_id,
            "nodeId": self.node_id,
            "clientOperationId": self.client_operation_id,
        }
        for path, name in names.items():
            if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
                raise Invalid(f"{path} has 1 to {MAX_NAME_LENGTH} characters.", path=path)

    def digest(self) -> bytes:
        """Equal for orders that ask for the same, whatever their request id (TK1)."""
        asked = [
            self.type,
            self.prompt,
            self.model,
            self.canvas_id,
            self.node_id,
            self.client_operation_id,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).digest()


@dataclass(frozen=True)
class Task:
    """A task as it is read; `prompt` may be cut, and `text` is only there when it is over.

    `key` grows with creation.
    """

    key: int
    task_id: str
    type: str
    status: Status
    stage: str
    progress: int
    prompt: str
    model: str
    canvas_id: str | None
    node_id: str | None
    client_operation_id: str | None
    error: str | None
    text: str | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime

    @property
    def final_text(self) -> str | None:
        """The whole text of a task that succeeded."""
        return self.text if self.status == "succeeded" else None

    @property
    def text_draft(self) -> str | None:
        """The text so far of a task that failed."""
        return self.text if self.status == "failed" else None


@dataclass(frozen=True)
class Choice:
    """Which tasks a list shows: those for which all of it holds."""

    canvas_id: str | None = None
    node_id: str | None = None
    active_only: bool = False


@dataclass(frozen=True)
class LogEntry:
    """A line of a task's log."""

    level: Level
    code: str
    message: str
    at: datetime


@dataclass(frozen=True)
class Step:
    """A step of a task's way: where people see it, and the line in its log.

    `progress` is 0 to 100; None leaves it as it is.
    """

    stage: str
    progress: int | None
    level: Level
    code: str
    message: str


CREATED = Step("Waiting for a worker", 5, "info", "created", "The task was created.")
CLAIMED = Step("A worker has it", 15, "info", "claimed", "A worker took the task.")
TAKEN_OVER = Step(
    "A worker has it", 15, "warn", "taken_over", "A worker was lost; another one starts anew."
)
CALLING = Step("Calling the model", 35, "info", "calling_model", "The model was asked.")
HANDED_BACK = Step(
    "Waiting for a worker", 5, "info", "handed_back", "The worker is stopping; another one starts."
)
SUCCEEDED = Step("Done", 100, "info", "succeeded", "The text is complete.")
LOST = Step("Failed", None, "error", "workers_lost", "Every worker that took the task was lost.")
FAULT = Step("Failed", None, "error", "internal", "The task failed by a fault of ours.")


def failed(failure: Failure) -> Step:
    """The last step of a task that ends with a failure."""
    return Step("Failed", None, "error", failure.machine_word, failure.detail)


def check_backlog(waiting: int, *, most: int) -> None:
    """Raises `BacklogFull` if an account with so many waiting tasks may not add one (TK3)."""
    if waiting >= most:
        raise BacklogFull(most)
