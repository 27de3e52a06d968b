"""What is made of failures of Valkey, and of what its client library does."""

import asyncio

import pytest
from valkey.exceptions import ConnectionError as Lost

from servicekit.errors import Unavailable
from servicekit.valkey import translated


@pytest.mark.parametrize("failure", [None, Lost("timed out"), TimeoutError()])
async def test_a_cancellation_that_the_library_swallows_ends_the_task(
    failure: Exception | None,
) -> None:
    """PR17"""
    waits = asyncio.Event()
    turns = 0

    async def loop() -> None:
        nonlocal turns
        while turns < 2:
            turns += 1
            with translated():
                waits.set()
                # As the library does whose own timeout ends in the same moment.
                try:
                    await asyncio.sleep(0 if turns > 1 else 3600)
                except asyncio.CancelledError:
                    if failure is not None:
                        raise failure from None

    task = asyncio.create_task(loop())
    await waits.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=5)

    assert (task.cancelled(), turns) == (True, 1)


async def test_what_fails_is_unavailable() -> None:
    """PR23"""
    with pytest.raises(Unavailable), translated():
        raise Lost("refused")
