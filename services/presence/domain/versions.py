"""Where a canvas is, and what brought it there."""

from dataclasses import dataclass

MAX_OPERATIONS_BYTES = 16 * 1024


@dataclass(frozen=True)
class Version:
    """A revision of a canvas.

    `operations`, a JSON array, leads to it from `base_revision`; without them (None) a session
    has to ask. `mutation_id` is there if all of them are of one request.
    """

    revision: int
    content_hash: str = ""
    base_revision: int = 0
    operations: bytes | None = None
    mutation_id: str = ""

    def and_then(self, later: "Version") -> "Version":
        """What there is to tell of two versions of which neither was told (PR10)."""
        if later.revision <= self.revision:
            return self
        operations = None
        if self.revision == later.base_revision and self.operations and later.operations:
            operations = self.operations[:-1] + b"," + later.operations[1:]
        if operations is None or len(operations) > MAX_OPERATIONS_BYTES:
            return Version(later.revision, later.content_hash)
        return Version(later.revision, later.content_hash, self.base_revision, operations)
