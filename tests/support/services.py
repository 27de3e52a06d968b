"""Runs services in the test's own process, and clients that call them."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

from gateway import app as gateway_app
from gateway.settings import Settings as GatewaySettings
from servicekit import client
from servicekit.client import Client
from servicekit.identity import Behalf
from servicekit.objects import ObjectSettings
from servicekit.postgres import DatabaseSettings
from servicekit.valkey import ValkeySettings
from services.canvas import server as canvas_server
from services.canvas.settings import Settings as CanvasSettings
from services.presence import server as presence_server
from services.presence.settings import Settings as PresenceSettings

TOKEN = "a-token-of-the-tests"
ORIGIN = "http://canvas.example"
PASSWORD = "correct horse battery"
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


def gateway_settings(
    database_url: str, objects_url: str, addresses: dict[str, str], **changes: object
) -> GatewaySettings:
    """Settings for a gateway in front of services at `addresses`; others are nowhere."""
    settings = GatewaySettings(
        internal_tokens=TOKEN,
        listen="127.0.0.1:0",
        drain_seconds=1,
        database=DatabaseSettings(database_url=database_url),
        objects=ObjectSettings(objects_url=objects_url),
        valkey=ValkeySettings(),
        canvas_address=addresses.get("canvas", NOWHERE),
        tasks_address=addresses.get("tasks", NOWHERE),
        generation_address=addresses.get("generation", NOWHERE),
        presence_address=addresses.get("presence", NOWHERE),
        allowed_origins=ORIGIN,
        signup_grant_credits=0,
        tries_per_minute=10_000,
    )
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def gateway(settings: GatewaySettings) -> AsyncIterator[str]:
    """A gateway; yields its address."""
    async with gateway_app.serving(settings) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def browser(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody's browser, with an account of its own, on a page of ours."""
    async with httpx.AsyncClient(base_url=address, headers={"Origin": ORIGIN}) as client:
        answer = await client.post(
            "/api/auth/register",
            json={"email": f"{secrets.token_hex(8)}@example.com", "password": PASSWORD},
        )
        assert answer.status_code == 201, answer.text
        yield client


def presence_settings(**changes: object) -> PresenceSettings:
    """Settings for a presence service."""
    settings = PresenceSettings(
        internal_tokens=TOKEN, listen="127.0.0.1:0", drain_seconds=1, valkey=ValkeySettings()
    )
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def presence_service(settings: PresenceSettings) -> AsyncIterator[int]:
    """The port of a presence service."""
    async with presence_server.serving(settings) as port:
        yield port
