"""One request to change a canvas, and the receipt of it."""

from dataclasses import dataclass, field

from services.canvas.domain import operations
from services.canvas.domain.canonical import digest
from services.canvas.domain.edits import Edit, check_canvas_id
from services.canvas.domain.failures import InvalidOperation
from services.canvas.domain.leases import MAX_PROOFS, Proof

MAX_MUTATION_ID_LENGTH = 200


@dataclass(frozen=True)
class Mutation:
    """One request to change a canvas. `base_revision` is recorded, not compared."""

    canvas_id: str
    mutation_id: str
    base_revision: int
    edits: list[Edit]
    proofs: list[Proof] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_canvas_id(self.canvas_id)
        if not 0 < len(self.mutation_id) <= MAX_MUTATION_ID_LENGTH:
            raise InvalidOperation(
                f"mutationId is text of 1 to {MAX_MUTATION_ID_LENGTH} characters.",
                path="mutationId",
            )
        if self.base_revision < 0:
            raise InvalidOperation("baseRevision is not negative.", path="baseRevision")
        if not 0 < len(self.edits) <= operations.MAX_OPERATIONS:
            raise InvalidOperation(
                f"A request has 1 to {operations.MAX_OPERATIONS} operations.", path="operations"
            )
        if len(self.proofs) > MAX_PROOFS:
            raise InvalidOperation(f"A request has at most {MAX_PROOFS} proofs.", path="editProofs")

    def digest(self) -> bytes:
        """Equal for requests that ask for the same, whatever proofs they show (CV10)."""
        payload = [edit.payload() for edit in self.edits]
        return digest({"baseRevision": self.base_revision, "operations": payload})


@dataclass(frozen=True)
class Receipt:
    """What was answered to a committed request: `result` is the body, byte for byte."""

    digest: bytes
    revision: int
    result: bytes
