"""Several windows that watch one task and each write what they see: they converge (CV19)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from services.canvas.domain.values import equal, read

TASK_ID = "metadata.taskId"
TASK_TIME = "metadata.taskUpdatedAt"
_REBINDS = frozenset({TASK_ID, "metadata"})


def is_observation(
    node: dict[str, Any], patch: Mapping[str, Any], before: Mapping[str, Any]
) -> bool:
    """Whether a patch is an observation of the task that the node is bound to.

    It names the stored task as it was before, writes a time of it, and rebinds nothing.
    """
    task_id = before.get(TASK_ID)
    return (
        isinstance(task_id, str)
        and task_id != ""
        and equal(read(node, TASK_ID), task_id)
        and _instant(patch.get(TASK_TIME)) is not None
        and not _REBINDS.intersection(patch)
    )


def later(stored: Any, given: str) -> str:
    """The later of two task times, as instants; the given one if the stored one is none."""
    known, seen = _instant(stored), _instant(given)
    if known is None or seen is None or seen >= known:
        return given
    return str(stored)


def _instant(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
