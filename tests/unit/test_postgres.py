"""Driver errors as failures."""

import asyncpg
import pytest

from servicekit.errors import Unavailable
from servicekit.postgres import DatabaseSettings, translated
from servicekit.settings import WrongSettings, load


def test_a_connection_that_was_ended_under_a_statement_is_unavailable() -> None:
    with pytest.raises(Unavailable), translated():
        raise asyncpg.InternalClientError("cannot switch to state 12")


def test_one_connection_is_not_enough_for_writes_and_reads() -> None:
    environ = {"GESSO_DATABASE_URL": "postgresql://db/gesso", "GESSO_DATABASE_CONNECTIONS": "1"}

    with pytest.raises(WrongSettings) as caught:
        load(DatabaseSettings, "canvas", environ)

    assert "a whole number >= 2" in caught.value.lines[0]
