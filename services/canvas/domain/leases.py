"""Edit leases: who may write the text of a node for a while."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.canvas.domain.edits import Edit, PatchNode
from services.canvas.domain.failures import EditLeaseConflict, InvalidOperation

LEASE = timedelta(seconds=30)
MAX_SESSION_ID_LENGTH = 200
MAX_PROOFS = 500

TEXT_FIELDS = (
    "title",
    "metadata.prompt",
    "metadata.content",
    "metadata.richText",
    "metadata.composerContent",
)


@dataclass(frozen=True)
class Lease:
    """A node's text belongs to a session until a time of the database's clock."""

    node_id: str
    session_id: str
    token: str
    expires_at: datetime


@dataclass(frozen=True)
class Proof:
    """What a session shows to write the text of a node that it has leased."""

    node_id: str
    session_id: str
    token: str


def check_session(session_id: str) -> None:
    """Raises `InvalidOperation` unless the id of a session is 1 to 200 characters."""
    if not 0 < len(session_id) <= MAX_SESSION_ID_LENGTH:
        raise InvalidOperation(
            f"A session id has 1 to {MAX_SESSION_ID_LENGTH} characters.", path="sessionId"
        )


def check_proof(
    edit: Edit, leases: Mapping[str, Lease], proofs: Iterable[Proof], now: datetime
) -> None:
    """Raises `EditLeaseConflict` if an edit writes text that it may not write (CV18).

    Without a live lease anybody may write; a proof that is shown must be of a live one.
    """
    if not isinstance(edit, PatchNode) or not touches_text(edit.patch):
        return
    lease = leases.get(edit.node_id)
    held = lease if lease is not None and lease.expires_at > now else None
    shown = [proof for proof in proofs if proof.node_id == edit.node_id]
    if held is None:
        if shown:
            raise EditLeaseConflict(edit.node_id, "the proof is not of a lease that holds", None)
        return
    if any((it.session_id, it.token) == (held.session_id, held.token) for it in shown):
        return
    raise EditLeaseConflict(edit.node_id, "another session is writing it", holder_of(held))


def holder_of(lease: Lease) -> tuple[str, datetime]:
    """What others may know of a lease: whose it is, and until when."""
    return lease.session_id, lease.expires_at


def touches_text(paths: Iterable[str]) -> bool:
    """Whether one of the paths is a text field, or lies above or below one."""
    return any(
        path == field or field.startswith(f"{path}.") or path.startswith(f"{field}.")
        for path in paths
        for field in TEXT_FIELDS
    )
