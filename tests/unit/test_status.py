"""Failures on their way across gRPC."""

import pytest

from servicekit import wire
from servicekit.errors import Conflict
from servicekit.status import status_from_failure


@pytest.mark.parametrize("character", ["x", "灯", "🏮", "\n", "\x01"])
def test_a_failure_fits_the_trailers_whatever_the_client_sent(character: str) -> None:
    long = character * 1_000_000
    failure = Conflict(long, path=long, object_id=long, current_value=long)

    status = status_from_failure(failure, domain="canvas.gesso")

    # Everything but letters is percent-encoded in the detail, and base64 adds a third.
    ((_, details),) = status.trailing_metadata
    assert 3 * len(status.details.encode()) + len(details) * 4 / 3 < wire.MAX_METADATA_BYTES


def test_what_fits_is_not_cut() -> None:
    failure = Conflict("It differs.", current_value="灯" * 1_364)

    status = status_from_failure(failure, domain="canvas.gesso")

    assert ("灯" * 1_364).encode() in status.trailing_metadata[0][1]
