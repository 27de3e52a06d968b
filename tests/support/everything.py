"""All services behind two gateways, and somebody who orders pictures and texts."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from servicekit.identity import Behalf
from services.tasks import server as tasks_server
from tests.support.generation import Hand, House, Person
from tests.support.services import (
    ORIGIN,
    browser,
    gateway,
    gateway_settings,
    presence_service,
    presence_settings,
)
from tests.support.tasks import tasks_settings


@dataclass
class Suite:
    """All services, the addresses of two gateways, and somebody who uses the first."""

    home: House
    gateways: list[str]
    anna: httpx.AsyncClient

    @property
    def hand(self) -> Hand:
        """A worker."""
        return self.home.hand()

    def other_window(self) -> httpx.AsyncClient:
        """The same person at the second gateway."""
        return httpx.AsyncClient(
            base_url=self.gateways[1], headers={"Origin": ORIGIN}, cookies=self.anna.cookies
        )


@asynccontextmanager
async def customer(home: House, address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody's browser, with an account that has credits."""
    async with browser(address) as client:
        account_id = (await client.get("/api/me")).json()["id"]
        await Person(home, Behalf(account_id=account_id)).grant(1000)
        yield client


@asynccontextmanager
async def suite(
    home: House, generation_address: str | None = None, **changes: object
) -> AsyncIterator[Suite]:
    """The suite around a house."""
    async with AsyncExitStack() as stack:
        presence = await stack.enter_async_context(presence_service(presence_settings()))
        tasks = await stack.enter_async_context(
            tasks_server.serving(tasks_settings(home.database_url, poll_seconds=0.2))
        )
        settings = gateway_settings(
            home.database_url,
            home.objects_url,
            {
                "canvas": home.canvas_address,
                "generation": generation_address or home.generation_address,
                "presence": f"127.0.0.1:{presence}",
                "tasks": f"127.0.0.1:{tasks}",
            },
            **changes,
        )
        gateways = [await stack.enter_async_context(gateway(settings)) for _ in range(2)]
        anna = await stack.enter_async_context(customer(home, gateways[0]))
        await create(anna, "c")
        yield Suite(home, gateways, anna)


async def create(client: httpx.AsyncClient, canvas_id: str) -> None:
    """Makes a canvas."""
    create = {"type": "create_canvas", "canvas": {"title": "A canvas"}}
    asked = {"mutationId": secrets.token_hex(8), "baseRevision": 0, "operations": [create]}
    path = f"/api/canvas-projects/{canvas_id}/operations"
    async with asyncio.timeout(15):
        # A service that has just begun may not say yet that it serves.
        while (answer := await client.patch(path, json=asked)).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, answer.text


async def order(client: httpx.AsyncClient, canvas_id: str = "c") -> str:
    """Asks for a picture that is shown nowhere; the job's id."""
    asked = {"kind": "editor_image_generation", "params": {"prompt": "a lantern"}}
    answer = await client.post(f"/api/canvas-projects/{canvas_id}/generations", json=asked)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["operation"]["operationId"]
    return job_id


async def ask(client: httpx.AsyncClient, canvas_id: str | None = "c") -> str:
    """Asks for a text; the task's id."""
    task = {"type": "text", "prompt": "a lantern", "projectId": canvas_id}
    answer = await client.post("/api/tasks", json=task)
    assert answer.status_code == 202, answer.text
    task_id: str = answer.json()["id"]
    return task_id
