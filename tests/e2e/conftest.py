"""One suite for the end-to-end tests of one process."""

from collections.abc import Iterator

import pytest

from tests.support.suite import Up, start, stop


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data = tmp_path_factory.mktemp("suite") / "var"
    up = start(data)
    yield up
    if up.process.poll() is None:
        stop(up)
