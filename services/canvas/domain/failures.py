"""What can be wrong with a request to the canvas service."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from json import dumps
from typing import Any

from servicekit.errors import (
    Conflict,
    Facts,
    FailedPrecondition,
    Failure,
    Invalid,
    TooMany,
    Unavailable,
)
from services.canvas.domain.canonical import canonical

MAX_SHOWN_BYTES = 4096
MAX_MISSING_BYTES = 4096
MAX_TEXT_LENGTH = 300


class InvalidOperation(Invalid):
    """An operation that can never be applied as it is."""

    reason = "invalid_operation"


class InlineMedia(Invalid):
    """A value holds a picture, film or sound itself, where it should name a resource."""

    reason = "inline_media"

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"{path or 'The value'} holds media as a data URL: upload it and name its resource.",
            path=path,
        )


class FieldConflict(Conflict):
    """A baseline is not what is stored, or an id to be created exists."""

    reason = "canvas_field_conflict"


class ObjectMissing(Conflict):
    """The node, connection or canvas that an operation needs is gone."""

    reason = "canvas_object_missing"

    def __init__(self, object_type: str, object_id: str) -> None:
        super().__init__(
            f"The {object_type} {object_id!r} is not there.",
            object_type=object_type,
            object_id=object_id,
        )


class EditLeaseConflict(Conflict):
    """The text of a node is another session's to write, or a proof is not of a lease that holds."""

    reason = "canvas_edit_lease_conflict"

    def __init__(self, node_id: str, why: str, holder: tuple[str, datetime] | None) -> None:
        """`holder` is the session that has the lease, and until when."""
        super().__init__(f"The text of the node {node_id!r} cannot be written: {why}.")
        self.facts["object_id"] = node_id
        if holder is not None:
            session_id, expires_at = holder
            self.facts["holder"] = {"sessionId": session_id, "expiresAt": expires_at}


class MediaAssetsPending(Invalid):
    """Nodes name resources or assets that are not registered, or do not belong together.

    `missing` lists the first of them, as many as fit an answer; the detail says how many there are.
    """

    reason = "canvas_media_assets_pending"

    def __init__(self, missing: list[dict[str, str]]) -> None:
        listed = _first(missing)
        some = "" if len(listed) == len(missing) else f" The first {len(listed)} are listed."
        super().__init__(
            f"{len(missing)} of the files or assets that the nodes name are not registered; "
            f"register them, or mend the pairs, and send the change again.{some}",
            missing=listed,
        )


class AgentBusy(Conflict):
    """Another agent run has the canvas."""

    reason = "canvas_agent_busy"

    def __init__(self, task_id: str, state: str, since: datetime) -> None:
        super().__init__(
            "Another agent run has the canvas.",
            task_id=task_id,
            state=state,
            since=since,
        )


class ChangesExpired(FailedPrecondition):
    """The changes after a revision are not kept any more, or the canvas was created anew."""

    reason = "changes_expired"

    def __init__(self) -> None:
        super().__init__("The changes since then are not kept; read the whole canvas.")


class MutationIdReused(Conflict):
    """The mutation id came before with another payload."""

    reason = "canvas_mutation_id_reused"

    def __init__(self) -> None:
        super().__init__("This mutation id was used for another request; it is never applied.")


class CanvasTooLarge(TooMany):
    """The canvas would have too many nodes or bytes."""

    reason = "canvas_too_large"


class StorageExceeded(TooMany):
    """The account would have too many canvases, assets or bytes."""

    reason = "structured_storage_exceeded"


class ConcurrentWrite(Unavailable):
    """Others were changing the canvas for too long; nothing of this request was applied."""

    reason = "canvas_concurrent_write"

    def __init__(self) -> None:
        super().__init__("The canvas is being changed; send the same request again.")


class AssetVersionConflict(Conflict):
    """The stored asset is not the version that was read."""

    reason = "asset_version_conflict"

    def __init__(self, version: int) -> None:
        super().__init__(
            f"The asset is at version {version} now; read it and write again.", version=version
        )


def shown(current: Any) -> Facts:
    """The fact that tells what is stored instead, if it is at most 4 KiB of JSON."""
    return {"current_value": current} if len(canonical(current).encode()) <= MAX_SHOWN_BYTES else {}


@dataclass
class Place:
    """Where a request is read or applied just now."""

    index: int = 0


@contextmanager
def located() -> Iterator[Place]:
    """Adds to a failure which operation of the request it is about: where its place is."""
    place = Place()
    try:
        yield place
    except Failure as failure:
        failure.facts.setdefault("operation_index", place.index)
        raise


def _first(missing: list[dict[str, str]]) -> list[dict[str, str]]:
    """As many as fit, at least one; what is very long is cut."""
    listed: list[dict[str, str]] = []
    size = 0
    for each in missing:
        short = {name: _cut(text) for name, text in each.items()}
        size += len(dumps(short, ensure_ascii=False).encode())
        if listed and size > MAX_MISSING_BYTES:
            break
        listed.append(short)
    return listed


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…"
