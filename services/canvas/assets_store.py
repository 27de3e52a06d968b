"""Remembers resources and assets."""

from dataclasses import asdict, fields
from typing import Any

from servicekit.postgres import Database
from services.canvas.domain.assets import Asset, Draft, Probe, Resource
from services.canvas.domain.limits import Limits, Usage

_RESOURCE_COLUMNS = ", ".join(field.name for field in fields(Resource))
_ASSET_COLUMNS = ", ".join(field.name for field in fields(Asset))

INSERT_RESOURCE = f"""
INSERT INTO canvas.resource
       (resource_id, account_id, request_id, kind, sha256, size_bytes, mime_type, width, height)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (account_id, request_id) DO NOTHING
RETURNING {_RESOURCE_COLUMNS}
"""

READ_RESOURCE_OF_REQUEST = f"""
SELECT {_RESOURCE_COLUMNS}
  FROM canvas.resource
 WHERE account_id = $1
   AND request_id = $2
"""

READ_RESOURCE = f"""
SELECT {_RESOURCE_COLUMNS}
  FROM canvas.resource
 WHERE resource_id = $2
   AND account_id = $1
"""

INSERT_ASSET = f"""
INSERT INTO canvas.asset (account_id, asset_id, kind, category, title, resource_id)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (account_id, asset_id) DO NOTHING
RETURNING {_ASSET_COLUMNS}
"""

UPDATE_ASSET = f"""
UPDATE canvas.asset
   SET kind        = $3,
       category    = $4,
       title       = $5,
       resource_id = $6,
       version     = version + 1,
       updated_at  = now()
 WHERE account_id = $1
   AND asset_id = $2
   AND version = $7
RETURNING {_ASSET_COLUMNS}
"""

COUNT_ASSET = """
INSERT INTO canvas.usage AS usage (account_id, assets)
VALUES ($1, 1)
    ON CONFLICT (account_id)
    DO UPDATE SET assets = usage.assets + 1
RETURNING canvases, assets, json_bytes
"""

READ_ASSET = f"""
SELECT {_ASSET_COLUMNS}
  FROM canvas.asset
 WHERE account_id = $1
   AND asset_id = $2
"""

LIST_ASSETS = f"""
SELECT {_ASSET_COLUMNS}
  FROM canvas.asset
 WHERE account_id = $1
   AND key < $2
 ORDER BY key DESC
 LIMIT $3
"""

DELETE_ASSET = """
WITH gone AS (
    DELETE FROM canvas.asset
     WHERE account_id = $1
       AND asset_id = $2
    RETURNING asset_id
)
UPDATE canvas.usage
   SET assets = assets - 1
 WHERE account_id = $1
   AND EXISTS (SELECT FROM gone)
RETURNING account_id
"""


class AssetsStore:
    """The resources and assets of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_resource(
        self,
        account_id: str,
        request_id: str,
        resource_id: str,
        *,
        kind: str,
        sha256: str,
        size_bytes: int,
        probe: Probe,
    ) -> Resource | None:
        """The new resource, or None if the request id has one already."""
        row = await self._database.fetchrow(
            INSERT_RESOURCE,
            resource_id,
            account_id,
            request_id,
            kind,
            sha256,
            size_bytes,
            *asdict(probe).values(),
        )
        return Resource(**row) if row else None

    async def resource_of_request(self, account_id: str, request_id: str) -> Resource | None:
        """The resource that a request made."""
        row = await self._database.fetchrow(READ_RESOURCE_OF_REQUEST, account_id, request_id)
        return Resource(**row) if row else None

    async def resource(self, account_id: str, resource_id: str) -> Resource | None:
        """A resource of the account."""
        row = await self._database.fetchrow(READ_RESOURCE, account_id, resource_id)
        return Resource(**row) if row else None

    async def write(self, account_id: str, draft: Draft, limits: Limits) -> Asset | None:
        """The written asset, or None if the stored version is not the one that was read."""
        content = (draft.kind, draft.category, draft.title, draft.resource_id)
        async with self._database.transaction() as connection:
            if draft.version > 0:
                row = await connection.fetchrow(
                    UPDATE_ASSET, account_id, draft.asset_id, *content, draft.version
                )
            else:
                row = await connection.fetchrow(INSERT_ASSET, account_id, draft.asset_id, *content)
                if row is not None:
                    usage: Any = await connection.fetchrow(COUNT_ASSET, account_id)
                    limits.check(Usage(**usage), Usage(assets=1))
        return Asset(**row) if row else None

    async def asset(self, account_id: str, asset_id: str) -> Asset | None:
        """An asset of the account."""
        row = await self._database.fetchrow(READ_ASSET, account_id, asset_id)
        return Asset(**row) if row else None

    async def page(self, account_id: str, before: int, limit: int) -> list[Asset]:
        """Up to `limit` assets, newest first, with keys below `before`."""
        rows = await self._database.fetch(LIST_ASSETS, account_id, before, limit)
        return [Asset(**row) for row in rows]

    async def delete(self, account_id: str, asset_id: str) -> bool:
        """Deletes an asset; whether there was one."""
        return await self._database.fetchrow(DELETE_ASSET, account_id, asset_id) is not None
