"""Services on real stores, one of each for the tests of one process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from servicekit.client import Client
from services.canvas.batch import Applied
from services.canvas.commits import Commits
from services.canvas.domain.mutation import Mutation
from tests.support.services import canvas_service, canvas_settings
from tests.support.valkey import ValkeyServer, valkey_server


@pytest.fixture(scope="session")
def objects_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where files are kept."""
    folder: Path = tmp_path_factory.mktemp("objects")
    return folder.as_uri()


@pytest.fixture(scope="session")
async def canvas(shared_database: str, objects_url: str) -> AsyncIterator[Client]:
    """A client of a real canvas service."""
    async with canvas_service(canvas_settings(shared_database, objects_url)) as client:
        yield client


@pytest.fixture(scope="session")
async def shared_valkey() -> AsyncIterator[ValkeyServer]:
    """One real Valkey, for tests that keep to accounts of their own and leave it running."""
    async with valkey_server() as server:
        yield server


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mutation ids of the requests that came to a service of this process."""
    came: list[str] = []
    apply = Commits.apply

    async def noticed(self: Commits, account_id: str, mutation: Mutation) -> Applied:
        came.append(mutation.mutation_id)
        return await apply(self, account_id, mutation)

    monkeypatch.setattr(Commits, "apply", noticed)
    return came
