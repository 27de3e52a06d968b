"""Agent runs, one a canvas at most."""

from servicekit.errors import Invalid

MAX_TASK_ID_LENGTH = 200
STATES = ("queued", "running", "awaiting_approval", "finishing")


def check_task(task_id: str) -> None:
    """Raises `Invalid` unless the id of a task is 1 to 200 characters."""
    if not 0 < len(task_id) <= MAX_TASK_ID_LENGTH:
        raise Invalid(f"A task id has 1 to {MAX_TASK_ID_LENGTH} characters.", path="taskId")
