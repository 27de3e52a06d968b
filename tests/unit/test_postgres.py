"""Driver errors as failures."""

import asyncpg
import pytest

from servicekit.errors import Unavailable
from servicekit.postgres import translated


def test_a_connection_that_was_ended_under_a_statement_is_unavailable() -> None:
    with pytest.raises(Unavailable), translated():
        raise asyncpg.InternalClientError("cannot switch to state 12")
