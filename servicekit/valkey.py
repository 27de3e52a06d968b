"""Valkey (or Redis): a connection that comes back by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    try:
        await client.ping()
    except (ValkeyError, OSError) as error:
        raise Unavailable("Valkey does not answer; try again.") from error
