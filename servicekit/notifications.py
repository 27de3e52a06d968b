"""Hears PostgreSQL notifications, over a connection of its own that comes back by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import asyncpg

from servicekit.background import background
from servicekit.pauses import growing
from servicekit.telemetry import logger

PROBE_SECONDS = 15.0
ANSWER_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

_LOST = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


def listening(
    url: str, channel: str, *, heard: Callable[[str], None], missed: Callable[[], None]
) -> AbstractAsyncContextManager[None]:
    """Calls `heard` with the payload of each notification on `channel`, inside the block.

    Notifications that come while the connection is away are lost: `missed` is called each time
    it stands anew, the first time too, so that the caller looks for itself. Both must not block.
    """
    return background(_listen(url, channel, heard, missed))


async def _listen(
    url: str, channel: str, heard: Callable[[str], None], missed: Callable[[], None]
) -> None:
    log = logger("notifications")
    pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        try:
            async with _connection(url) as connection:
                await connection.add_listener(channel, lambda *event: heard(event[-1]))
                missed()
                pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                await _until_lost(connection)
        except _LOST as error:
            log.warning("listening was interrupted", channel=channel, why=str(error))
        await asyncio.sleep(next(pauses))


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(
        url, timeout=ANSWER_SECONDS, server_settings={"application_name": "gesso-listener"}
    )
    try:
        yield connection
    finally:
        with suppress(*_LOST):
            await connection.close(timeout=ANSWER_SECONDS)


async def _until_lost(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Returns when the connection is gone; asks now and then, since a cut line says nothing."""
    gone = asyncio.Event()
    connection.add_termination_listener(lambda _: gone.set())
    while not gone.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                await gone.wait()
        if not gone.is_set():
            await connection.fetchval("SELECT 1", timeout=ANSWER_SECONDS)
