"""Fixtures of all tests: real stores, shared by the tests of one process."""

from collections.abc import AsyncIterator

import pytest

from suite import postgres
from tests.support.database import fresh_database, postgres_server


@pytest.fixture(scope="session")
async def database_server() -> AsyncIterator[postgres.Server]:
    """One real PostgreSQL."""
    async with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
async def shared_database(database_server: postgres.Server) -> AsyncIterator[str]:
    """The URL of one database for tests that keep to accounts of their own."""
    async with fresh_database(database_server) as url:
        yield url


@pytest.fixture
async def database(database_server: postgres.Server) -> AsyncIterator[str]:
    """The URL of a database that this test has for itself."""
    async with fresh_database(database_server) as url:
        yield url
