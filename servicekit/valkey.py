"""Valkey (or Redis): a connection that comes back by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

from valkey.asyncio import Valkey
from valkey.exceptions import ValkeyError

from servicekit.errors import Unavailable
from servicekit.settings import Settings, setting


class ValkeySettings(Settings, frozen=True, kw_only=True):
    """Where Valkey is, if there is one."""

    redis_url: Annotated[
        str | None,
        setting(
            "Where Valkey or Redis is; without it, one process of each kind can run.",
            example="redis://valkey:6379/0",
            shared=True,
            secret=True,
            pattern="^(redis|rediss|valkey|unix)://",
        ),
    ] = None


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Valkey]:
    """A client, closed at the end. It connects when first used."""
    client: Valkey = Valkey.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        yield client
    finally:
        await client.aclose()


async def check(client: Valkey) -> None:
    """Raises `Unavailable` if Valkey does not answer."""
    with translated():
        await client.ping()


@contextmanager
def translated() -> Iterator[None]:
    """Turns failures of Valkey inside the block of a task into `Unavailable`."""
    try:
        yield
    except (ValkeyError, OSError) as error:
        _end_if_cancelled()
        raise Unavailable("Valkey does not answer; try again.") from error
    _end_if_cancelled()


def _end_if_cancelled() -> None:
    """Raises what the library may have swallowed: cancelled as its own timeout ends, it goes on."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
