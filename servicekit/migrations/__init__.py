"""Brings the SQL schema of each service up to date (Alembic), each with its own history."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from servicekit.postgres import translated

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Schema:
    """The schema of one service and the folder of its migrations."""

    name: str
    folder: Path

    def head(self) -> str:
        """The newest revision: files are called `NNNN_what_it_does.py`, one after another."""
        return max(path.name[:4] for path in self.folder.glob("[0-9][0-9][0-9][0-9]_*.py"))


def statements(script: str) -> list[str]:
    """The statements of an SQL script, each of which ends with `;` at the end of a line."""
    return [part for part in script.split(";\n") if part.strip()]


async def current(url: str, schemas: Sequence[Schema]) -> dict[str, str | None]:
    """The revision that each schema is at, None for one that is not there."""
    revisions: dict[str, str | None] = {}
    with translated():
        connection = await asyncpg.connect(url)
        try:
            for schema in schemas:
                try:
                    revisions[schema.name] = await connection.fetchval(
                        f"SELECT version_num FROM {schema.name}.alembic_version"  # noqa: S608
                    )
                except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                    revisions[schema.name] = None
        finally:
            await connection.close()
    return revisions


async def migrate(url: str, schemas: Sequence[Schema]) -> list[str]:
    """Brings schemas to their newest revision, and names those that were not there yet.

    Safe to run from several processes at once: they take turns.
    """
    before = await current(url, schemas)
    behind = [schema for schema in schemas if before[schema.name] != schema.head()]
    if behind:
        # Imported here: starting up on an up-to-date database need not load it.
        from servicekit.migrations.upgrade import upgrade  # noqa: PLC0415

        await upgrade(url, behind)
    return [schema.name for schema in behind]
