"""Runs Alembic on our own connection."""

from collections.abc import Sequence

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from servicekit.migrations import HERE, Schema

# Any number that nobody else locks; all migrations of a database take turns on it.
_LOCK = 0x6765_7373_6F


async def upgrade(url: str, schemas: Sequence[Schema]) -> None:
    """Runs the missing migrations of the schemas, each schema in one transaction."""
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), poolclass=NullPool
    )
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
            await connection.commit()
            for schema in schemas:
                await connection.run_sync(_upgrade, schema)
            await connection.commit()
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, schema: Schema) -> None:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    config.set_main_option("version_locations", str(schema.folder))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema.name
    command.upgrade(config, "head")
    connection.execute(text("ANALYZE"))
    connection.commit()
