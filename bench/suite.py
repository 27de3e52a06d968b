"""A real suite of processes for one run, and who calls it."""

import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.http import Browser
from bench.rpc import Caller
from servicekit import client
from servicekit.client import Client
from servicekit.identity import Behalf, credentials
from suite.constellation import Wanted, free_port
from suite.up import running

PASSWORD = "correct horse battery"


@dataclass(frozen=True)
class Bench:
    """A suite that is up: its address, its internal token, where and as what processes run."""

    url: str
    token: str
    addresses: dict[str, str]
    pids: dict[str, int]
    database_url: str
    objects_url: str

    async def browser(self) -> Browser:
        """A browser that is signed in with an account of its own."""
        browser = await Browser.at(self.url)
        email = f"{secrets.token_hex(8)}@example.com"
        status, _ = await browser.ask(
            "POST", "/api/auth/register", {"email": email, "password": PASSWORD}
        )
        assert status == 201
        return browser

    async def window(self, browser: Browser) -> Browser:
        """Another window of the same account, on a connection of its own."""
        window = await Browser.at(self.url)
        window.cookie = browser.cookie
        return window

    async def caller(self, service: str, method: str, behalf: Behalf) -> Caller:
        """A lean caller of one method of a service, on a connection of its own."""
        metadata = (*credentials(caller="bench", tokens=(self.token,)), *behalf.metadata())
        return await Caller.at(self.addresses[service], method, metadata)

    @asynccontextmanager
    async def client(self, service: str) -> AsyncIterator[Client]:
        """A client of a service, on a connection of its own."""
        address = self.addresses[service]
        async with client.connected(address, caller="bench", tokens=(self.token,)) as made:
            yield made


@asynccontextmanager
async def bench_suite(
    *, workers: int, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Bench]:
    """A suite of processes on a data folder of its own, gone at the end."""
    token = secrets.token_hex(16)
    settings = {
        **os.environ,
        "GESSO_INTERNAL_TOKENS": token,
        "GESSO_LOG_LEVEL": "warning",
        # Every round signs up browsers of its own.
        "GESSO_GATEWAY_TRIES_PER_MINUTE": "1000000",
        **(environ or {}),
    }
    with tempfile.TemporaryDirectory(prefix="gesso-bench-") as folder:
        wanted = Wanted(Path(folder), port=free_port(), workers=workers, gateways=1, presences=1)
        async with running(wanted, settings, progress=lambda _: None) as suite:
            addresses = {process.name: process.address for process in suite.processes()}
            yield Bench(
                url=suite.url,
                token=token,
                addresses=addresses,
                pids={process.name: process.pid or 0 for process in suite.processes()},
                database_url=f"postgresql://postgres@/gesso?host={addresses['postgres']}",
                objects_url=(Path(folder) / "objects").as_uri(),
            )


def an_account() -> Behalf:
    """Somebody that services may be called for."""
    return Behalf(account_id=f"us_{secrets.token_hex(8)}")
