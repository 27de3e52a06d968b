"""What can be done with canvases."""

from dataclasses import dataclass
from datetime import UTC, datetime

from servicekit.errors import NotFound
from servicekit.postgres import Contention
from servicekit.strictjson import dumps
from servicekit.times import rfc3339
from services.canvas.domain import operations
from services.canvas.domain.canonical import digest
from services.canvas.domain.edits import Edit, check_canvas_id, touched
from services.canvas.domain.failures import (
    ConcurrentWrite,
    InvalidOperation,
    MutationIdReused,
)
from services.canvas.domain.limits import Limits, growth
from services.canvas.feed import Feed
from services.canvas.store import CanvasStore, Receipt, Summary, SyncStatus, Whole

MAX_MUTATION_ID_LENGTH = 200

Place = tuple[datetime, int]
NEWEST: Place = (datetime(9999, 1, 1, tzinfo=UTC), 2**63 - 1)


@dataclass(frozen=True)
class Mutation:
    """One request to change a canvas."""

    canvas_id: str
    mutation_id: str
    base_revision: int
    edits: list[Edit]

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

    def digest(self) -> bytes:
        """Equal for requests that ask for the same (CV10)."""
        payload = [edit.payload() for edit in self.edits]
        return digest({"baseRevision": self.base_revision, "operations": payload})


@dataclass(frozen=True)
class Applied:
    """The answer to a mutation, and whether it was given before."""

    receipt: Receipt
    replayed: bool


class CanvasService:
    """The canvases of all accounts; every method acts for one of them."""

    def __init__(self, store: CanvasStore, feed: Feed, limits: Limits) -> None:
        self._store = store
        self._feed = feed
        self._limits = limits

    async def apply(self, account_id: str, mutation: Mutation) -> Applied:
        """Applies a mutation once, however often it is sent (CV10 to CV12)."""
        asked = mutation.digest()
        try:
            async with self._store.locked(account_id, mutation.canvas_id) as canvas:
                receipt, objects = await canvas.gather(
                    mutation.mutation_id, touched(mutation.edits)
                )
                if receipt is not None:
                    if receipt.digest != asked:
                        raise MutationIdReused
                    return Applied(receipt, replayed=True)

                change = operations.apply(mutation.canvas_id, canvas.head, objects, mutation.edits)

                receipt = _receipt(mutation, asked, change.head.revision, canvas.now)
                grown = growth(canvas.head, change.head)
                usage = await canvas.save(change, grown, mutation.mutation_id, receipt)
                self._limits.check(usage, grown)
        except Contention:
            raise ConcurrentWrite from None
        self._feed.changed(account_id, mutation.canvas_id, receipt.revision)
        return Applied(receipt, replayed=False)

    async def page(self, account_id: str, before: Place, limit: int) -> list[Summary]:
        """Up to `limit` canvases, newest change first, from before a place on."""
        return await self._store.page(account_id, before, limit)

    async def read(self, account_id: str, canvas_id: str, *, known_etag: str) -> Whole | Summary:
        """A canvas with its content, or its summary if that is known. Raises `NotFound`."""
        whole = await self._store.read(account_id, canvas_id, known_etag=known_etag)
        if whole is None:
            raise NotFound("canvas")
        return whole

    async def delete(self, account_id: str, canvas_id: str) -> None:
        """Deletes a canvas; its receipts stay. Raises `NotFound`."""
        if not await self._store.delete(account_id, canvas_id):
            raise NotFound("canvas")

    async def sync_status(self, account_id: str, canvas_id: str) -> SyncStatus:
        """Where a canvas is. Raises `NotFound`."""
        status = await self._store.sync_status(account_id, canvas_id)
        if status is None:
            raise NotFound("canvas")
        return status

    async def some_nodes(
        self, account_id: str, canvas_id: str, node_ids: list[str]
    ) -> tuple[int, list[str]]:
        """The revision of a canvas and some of its nodes at it. Raises `NotFound`."""
        found = await self._store.some_nodes(account_id, canvas_id, node_ids)
        if found is None:
            raise NotFound("canvas")
        return found


def _receipt(mutation: Mutation, asked: bytes, revision: int, now: datetime) -> Receipt:
    result = {
        "mutationId": mutation.mutation_id,
        "revision": revision,
        "appliedAt": rfc3339(now),
    }
    return Receipt(digest=asked, revision=revision, result=dumps(result).encode())
