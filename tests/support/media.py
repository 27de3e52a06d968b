"""Files and assets that an account has, without the files."""

import asyncpg

REGISTER = """
WITH resource AS (
    INSERT INTO canvas.resource
           (resource_id, account_id, request_id, kind, mime_type, size_bytes, sha256)
    SELECT 'rs_' || n, $1, 'test:' || n, 'image', 'image/png', 1, repeat('0', 64)
      FROM generate_series(1, $2) AS n
)
INSERT INTO canvas.asset (account_id, asset_id, kind, category, title, resource_id)
SELECT $1, 'as_' || n, 'image', '', '', 'rs_' || n
  FROM generate_series(1, $2) AS n
"""


async def register(database_url: str, account_id: str | None, count: int = 8) -> None:
    """Registers rs_1, rs_2, … and as_1, as_2, … for the one account of a database that has them."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(REGISTER, account_id, count)
    finally:
        await connection.close()
