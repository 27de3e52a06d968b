"""A real PostgreSQL for the tests of one pytest process, and databases on it."""

import asyncio
import secrets
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from servicekit.migrations import migrate
from suite import postgres
from suite.children import child_command
from suite.schemas import SCHEMAS

TEMPLATE = "template_of_tests"
_CONFIGURATION = {
    **postgres.CONFIGURATION,
    # What a test wrote need not survive the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
}


@asynccontextmanager
async def postgres_server() -> AsyncIterator[postgres.Server]:
    """A server with a migrated template database, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="gesso-test-") as folder:
        server = postgres.prepared(Path(folder) / "postgres")
        process = subprocess.Popen(
            child_command(
                server.command(_CONFIGURATION), signalled=signal.SIGQUIT, user=server.user
            ),
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(30):
                while not await server.ready():
                    await asyncio.sleep(0.02)
            await _execute(server, f"CREATE DATABASE {TEMPLATE}")
            await migrate(server.url(TEMPLATE), SCHEMAS)
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait()


@asynccontextmanager
async def fresh_database(server: postgres.Server) -> AsyncIterator[str]:
    """The URL of a migrated, empty database, dropped at the end."""
    name = f"test_{secrets.token_hex(6)}"
    await _execute(server, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    try:
        yield server.url(name)
    finally:
        await _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


async def _execute(server: postgres.Server, statement: str) -> None:
    connection = await asyncpg.connect(server.url("postgres"))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
