"""Runs services in the test's own process, and clients that call them."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from servicekit import client
from servicekit.client import Client
from servicekit.identity import Behalf
from servicekit.objects import ObjectSettings
from servicekit.postgres import DatabaseSettings
from services.canvas import server as canvas_server
from services.canvas.settings import Settings as CanvasSettings
from services.presence import server as presence_server
from services.presence.settings import Settings as PresenceSettings

TOKEN = "a-token-of-the-tests"
# Nobody listens on the discard port of the loopback.
NOWHERE = "127.0.0.1:9"


def new_account() -> Behalf:
    """An account that no other test has."""
    return Behalf(account_id=f"us_{secrets.token_hex(8)}")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """A client of a service in this process."""
    async with client.connected(f"127.0.0.1:{port}", caller="tests", tokens=(TOKEN,)) as made:
        yield made


def canvas_settings(database_url: str, objects_url: str, **changes: object) -> CanvasSettings:
    """Settings for a canvas service that tells nobody."""
    settings = CanvasSettings(
        internal_tokens=TOKEN,
        listen="127.0.0.1:0",
        drain_seconds=1,
        database=DatabaseSettings(database_url=database_url),
        objects=ObjectSettings(objects_url=objects_url),
        presence_address=NOWHERE,
    )
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def canvas_service(settings: CanvasSettings) -> AsyncIterator[Client]:
    """A canvas service, and a client of it."""
    async with canvas_server.serving(settings) as port, connected(port) as made:
        yield made


def presence_settings(**changes: object) -> PresenceSettings:
    """Settings for a presence service."""
    settings = PresenceSettings(internal_tokens=TOKEN, listen="127.0.0.1:0", drain_seconds=1)
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def presence_service(settings: PresenceSettings) -> AsyncIterator[int]:
    """The port of a presence service."""
    async with presence_server.serving(settings) as port:
        yield port
