"""What can be done with resources and assets."""

import asyncio

from servicekit.errors import IdempotencyKeyReused, Invalid, NotFound
from servicekit.ids import new_id
from servicekit.objects import Objects
from services.canvas.assets_store import AssetsStore
from services.canvas.domain.assets import (
    Asset,
    Draft,
    Probe,
    Resource,
    check_kind,
    check_resource,
)
from services.canvas.domain.failures import AssetVersionConflict
from services.canvas.domain.limits import Limits
from services.canvas.probe import HEAD_BYTES, probe


class AssetsService:
    """The resources and assets of all accounts; every method acts for one of them."""

    def __init__(self, store: AssetsStore, objects: Objects, limits: Limits) -> None:
        self._store = store
        self._objects = objects
        self._limits = limits
        # Each holds a file in memory.
        self._reading_whole = asyncio.Semaphore(2)

    async def add_resource(
        self, account_id: str, request_id: str, *, kind: str, sha256: str
    ) -> tuple[Resource, bool]:
        """Registers a stored file; whether that had been done before.

        Raises `Invalid` if there is no such file or it is not of the kind, and
        `IdempotencyKeyReused`.
        """
        check_resource(kind, sha256, request_id)
        known = await self._store.resource_of_request(account_id, request_id)
        if known is None:
            try:
                size_bytes = await self._objects.size(sha256)
                found = await self._probed(sha256, size_bytes)
            except NotFound:
                raise Invalid("No file with this digest is stored.", path="sha256") from None
            check_kind(kind, found)
            added = await self._store.add_resource(
                account_id,
                request_id,
                new_id("rs"),
                kind=kind,
                sha256=sha256,
                size_bytes=size_bytes,
                probe=found,
            )
            if added is not None:
                return added, False
            known = await self._store.resource_of_request(account_id, request_id)
            assert known is not None
        if (known.kind, known.sha256) != (kind, sha256):
            raise IdempotencyKeyReused
        return known, True

    async def resource(self, account_id: str, resource_id: str) -> Resource:
        """A resource. Raises `NotFound`."""
        resource = await self._store.resource(account_id, resource_id)
        if resource is None:
            raise NotFound("resource")
        return resource

    async def write(self, account_id: str, draft: Draft) -> Asset:
        """Creates an asset or replaces the version that was read.

        Raises `AssetVersionConflict`, and `Invalid` if it names a resource that is not there.
        """
        named = draft.resource_id
        if named is not None and await self._store.resource(account_id, named) is None:
            raise Invalid("There is no such resource.", path="resourceId")
        written = await self._store.write(account_id, draft, self._limits)
        if written is not None:
            return written
        present = await self._store.asset(account_id, draft.asset_id)
        if present is not None and present.is_result_of(draft):
            return present
        raise AssetVersionConflict(present.version if present else 0)

    async def asset(self, account_id: str, asset_id: str) -> Asset:
        """An asset. Raises `NotFound`."""
        asset = await self._store.asset(account_id, asset_id)
        if asset is None:
            raise NotFound("asset")
        return asset

    async def page(self, account_id: str, before: int, limit: int) -> list[Asset]:
        """Up to `limit` assets, newest first, with keys below `before`."""
        return await self._store.page(account_id, before, limit)

    async def delete(self, account_id: str, asset_id: str) -> None:
        """Deletes an asset; its resource stays. Raises `NotFound`."""
        if not await self._store.delete(account_id, asset_id):
            raise NotFound("asset")

    async def _probed(self, sha256: str, size_bytes: int) -> Probe:
        """What a stored file is, from its beginning if that is enough."""
        if size_bytes > HEAD_BYTES:
            head = await self._beginning(sha256, HEAD_BYTES)
            found = await asyncio.to_thread(probe, head, is_whole=False)
            if found is not None:
                return found
        async with self._reading_whole:
            whole = await self._beginning(sha256, size_bytes)
            found = await asyncio.to_thread(probe, whole, is_whole=True)
        assert found is not None
        return found

    async def _beginning(self, sha256: str, size_bytes: int) -> bytes:
        return b"".join([chunk async for chunk in self._objects.read(sha256, 0, size_bytes)])
