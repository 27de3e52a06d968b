"""Jobs that the service carries out itself: gateway, generation and canvas, all real."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from gesso.generation.v1 import generation_pb2 as pb

from providers.image import ImageModel
from servicekit import postgres
from servicekit.errors import Conflict, TooMany
from servicekit.postgres import DatabaseSettings
from services.generation import inline
from services.generation.domain.jobs import Draft, Position, Target
from services.generation.domain.requests import Request, drafted
from services.generation.store import QueueStore
from tests.support.canvases import placeholder
from tests.support.gate import Gate
from tests.support.generation import House, Person, generation_service, generation_settings, house
from tests.support.services import NOWHERE, browser, gateway, gateway_settings

GENERATIONS = "/api/canvas-projects/c/generations"
ROWS = "SELECT FROM generation.job UNION ALL SELECT FROM generation.summary"


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test."""
    async with inline_house(database, objects_url) as services:
        yield services


def inline_house(
    database: str,
    objects_url: str,
    model: ImageModel | None = None,
    **changes: Any,
) -> AbstractAsyncContextManager[House]:
    """A house that carries jobs out itself, with a model or with the studio."""
    providers = None if model is None else {"studio": model}
    return house(database, objects_url, providers, generation_mode="inline", **changes)


@asynccontextmanager
async def customer(home: House) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who has just signed up, with a canvas on which a node waits."""
    addresses = {"canvas": home.canvas_address, "generation": home.generation_address}
    settings = gateway_settings(
        home.database_url,
        home.objects_url,
        addresses,
        signup_grant_credits=100,
        generation_mode="inline",
    )
    async with gateway(settings) as address, browser(address) as client:
        canvas = {"title": "A canvas", "nodes": [placeholder("n1")]}
        create = {"type": "create_canvas", "canvas": canvas}
        await client.patch(
            "/api/canvas-projects/c/operations",
            json={"mutationId": "m", "baseRevision": 0, "operations": [create]},
        )
        yield client


def wanted(**params: Any) -> dict[str, Any]:
    return {
        "kind": "editor_image_generation",
        "params": {"prompt": "一盏灯笼", "size": "128x96", **params},
        "canvasCompletion": {"placeholderNodeId": "n1"},
    }


async def ledger(client: httpx.AsyncClient) -> list[tuple[str, float]]:
    """Kinds and amounts of what was charged and given back, newest first."""
    entries = (await client.get("/api/wallet")).json()["entries"]
    return [(entry["kind"], entry["deltaCredits"]) for entry in entries[:-1]]


async def paying(home: House) -> Person:
    """An account with a hundred credits and a canvas on which a node waits."""
    person = home.person()
    await person.grant(100)
    await person.board().create(placeholder("n1"))
    return person


async def spent(person: Person) -> list[str]:
    """What the account was charged and given back, oldest first."""
    entries = (await person.wallet()).entries
    return [entry.reference.partition(":")[0] for entry in reversed(entries[:-1])]


async def test_an_order_is_answered_with_the_picture_on_the_canvas(home: House) -> None:
    """GN60"""
    async with customer(home) as anna:
        ordered = await anna.post(GENERATIONS, json=wanted(count=2))
        nodes = (await anna.get("/api/canvas-projects/c")).json()["nodes"]
        resource_id = nodes[0]["metadata"]["storageKey"].removeprefix("resource:")
        file = await anna.get(f"/api/resources/{resource_id}/file")
        operation = ordered.json()["operation"]
        path = f"/api/runtime/external-generation/jobs/{operation['operationId']}"
        job = await anna.get(path)
        ready = (await anna.get("/readyz")).json()

        assert ordered.status_code == 200, ordered.text
        assert (operation["status"], operation["progress"]) == ("completed", 100)
        assert [node["metadata"]["status"] for node in nodes] == ["success", "success"]
        assert file.content.startswith(b"\x89PNG")
        assert await ledger(anna) == [("charge", -8)]
        assert await home.fetch(ROWS) == []
        assert job.status_code == 404
        # Nobody needs workers here.
        assert ready["checks"]["generation"] == "ok"


async def test_a_job_that_fails_is_shown_and_given_back_once(home: House) -> None:
    """GN60 GN61"""
    key = {"Idempotency-Key": "once"}
    async with customer(home) as anna:
        failed = await anna.post(GENERATIONS, json=wanted(prompt="a lantern !fail"), headers=key)
        again = await anna.post(GENERATIONS, json=wanted(prompt="a lantern !fail"), headers=key)
        (node,) = (await anna.get("/api/canvas-projects/c")).json()["nodes"]

        operation = failed.json()["operation"]
        assert (failed.status_code, operation["status"]) == (200, "failed")
        assert operation["error"] == "The model refused this prompt."
        assert node["metadata"]["status"] == "error"
        assert node["metadata"]["errorDetails"] == operation["error"]
        assert again.json() == failed.json()
        assert again.headers["Idempotent-Replayed"] == "true"
        assert await ledger(anna) == [("refund", 4), ("charge", -4)]


async def test_what_is_wrong_or_cannot_be_paid_costs_nothing(home: House) -> None:
    """GN60"""
    async with customer(home) as anna:
        wrong = await anna.post(GENERATIONS, json=wanted(size="1x1"))
        for _ in range(3):
            await anna.post(GENERATIONS, json=wanted(count=8, size="64x64"))
        dear = await anna.post(GENERATIONS, json=wanted(count=8))

        assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (422, "params.size")
        assert (dear.status_code, dear.json()["reason"]) == (402, "insufficient_balance")
        assert await ledger(anna) == [("charge", -32)] * 3


async def test_two_at_once_are_one_job(database: str, objects_url: str) -> None:
    """GN61"""
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home:
        person = await paying(home)
        orders = [asyncio.create_task(person.enqueue(key="once", node_id="n1")) for _ in range(2)]
        await gate.was_asked()
        gate.let.set()
        first, second = await asyncio.gather(*orders)

        assert first.job == second.job
        assert sorted([first.replayed, second.replayed]) == [False, True]
        assert len(gate.requests) == 1
        assert await spent(person) == ["job"]


async def test_each_job_of_a_list_ends_by_itself(home: House) -> None:
    """GN60 GN61"""
    person = await paying(home)
    outcomes = await person.enqueue_all(
        *(
            pb.EnqueueRequest(
                dedupe_key=key,
                kind="editor_image_generation",
                params=json.dumps({"size": "64x64", "prompt": prompt}).encode(),
                canvas_id="cv_1",
            )
            for key, prompt in (("a", "a lantern"), ("b", "!fail"), ("a", "a lantern"), ("c", ""))
        )
    )

    made, failed, again = [outcome.enqueued for outcome in outcomes[:3]]
    assert made.job.status == pb.JOB_STATUS_COMPLETED
    assert failed.job.status == pb.JOB_STATUS_FAILED
    assert (again.job, again.replayed) == (made.job, True)
    assert outcomes[3].WhichOneof("outcome") == "status"
    assert await person.balance() == 96


async def test_a_job_goes_on_when_its_caller_goes_away(database: str, objects_url: str) -> None:
    """GN60 GN61"""
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home, customer(home) as anna:
        key = {"Idempotency-Key": "once"}
        order = asyncio.create_task(anna.post(GENERATIONS, json=wanted(), headers=key))
        await gate.was_asked()
        order.cancel()
        await asyncio.wait([order])
        gate.let.set()
        again = await anna.post(GENERATIONS, json=wanted(), headers=key)

        assert len(gate.requests) == 1
        assert again.json()["operation"]["status"] == "completed"
        assert again.headers["Idempotent-Replayed"] == "true"
        assert await ledger(anna) == [("charge", -4)]


async def test_a_job_goes_on_when_its_call_is_cut(database: str, objects_url: str) -> None:
    """GN60"""
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home:
        person = await paying(home)
        call = asyncio.create_task(person.enqueue(key="once", node_id="n1"))
        await gate.was_asked()
        call.cancel()
        await asyncio.wait([call])
        # Over the same connection: once this is answered, the end of the call has been heard.
        assert await person.balance() == 96
        gate.let.set()
        again = await person.enqueue(key="once", node_id="n1")

        assert len(gate.requests) == 1
        assert (again.job.status, again.replayed) == (pb.JOB_STATUS_COMPLETED, True)
        assert (await person.board().nodes())[0]["metadata"]["status"] == "success"


async def test_another_request_under_the_key_is_refused_before_and_after_a_restart(
    database: str, objects_url: str
) -> None:
    """GN61"""
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home:
        person = await paying(home)
        order = asyncio.create_task(person.enqueue(key="once", node_id="n1"))
        await gate.was_asked()
        with pytest.raises(Conflict, match="used for another request"):
            await person.enqueue(key="once", node_id="n1", prompt="another")
        gate.let.set()
        await order
        with pytest.raises(Conflict, match="used for another request"):
            await person.enqueue(key="once", node_id="n1", prompt="another")
    async with inline_house(database, objects_url) as home:
        back = Person(home, person.behalf)
        with pytest.raises(Conflict, match="used for another request"):
            await back.enqueue(key="once", node_id="n1", prompt="another")

        assert await spent(back) == ["job"]


async def test_after_a_restart_nothing_is_made_again(database: str, objects_url: str) -> None:
    """GN61 GN62"""
    async with inline_house(database, objects_url) as home:
        person = await paying(home)
        made = await person.enqueue(key="made", node_id="n1", count=2)
        failed = await person.enqueue(key="failed", prompt="!fail")
        before = await person.board().nodes()
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home:
        back = Person(home, person.behalf)
        made_again = await back.enqueue(key="made", node_id="n1", count=2)
        failed_again = await back.enqueue(key="failed", prompt="!fail")

        assert (made_again.job.job_id, made_again.replayed) == (made.job.job_id, True)
        assert made_again.job.status == pb.JOB_STATUS_COMPLETED
        assert failed_again.job.refund_entry_id == failed.job.refund_entry_id
        assert failed_again.job.status == pb.JOB_STATUS_FAILED
        assert gate.requests == []
        assert await back.board().nodes() == before
        assert await spent(back) == ["job", "job", "refund"]


async def test_a_charge_that_a_killed_process_left_is_made_good_by_a_repeat(
    home: House, database: str
) -> None:
    """GN61 GN62"""
    person = await paying(home)
    draft = lantern("once")
    job = inline.job_of(person.account_id, draft)
    connecting = postgres.connected(DatabaseSettings(database_url=database), application="test")
    async with connecting as pool, QueueStore(pool).locked(person.account_id) as account:
        assert account is not None
        entry_id = inline.entry_id_of(job, draft)
        await account.charge(job.job_id, draft.price_micros, entry_id=entry_id)

    made = await person.enqueue(key="once", node_id="n1")

    assert (made.job.job_id, made.replayed) == (job.job_id, True)
    assert made.job.status == pb.JOB_STATUS_COMPLETED
    assert (await person.board().nodes())[0]["metadata"]["taskId"] == job.job_id
    assert await spent(person) == ["job"]


async def test_what_outlasts_the_drain_is_failed_and_given_back(
    database: str, objects_url: str
) -> None:
    """GN62"""
    gate = Gate(request_id="request-1")
    async with house(database, objects_url) as home:
        person = await paying(home)
        async with inline_house(database, objects_url, gate, drain_seconds=0.1) as other:
            caller = Person(other, person.behalf)
            orders = [
                asyncio.create_task(caller.enqueue(node_id=node_id))
                for node_id in ("n1", *(None,) * inline.MAX_AT_ONCE)
            ]
            # All are charged, and one of them waits for a place.
            async with asyncio.timeout(10):
                while await person.balance() != 100 - 4 * len(orders):
                    await asyncio.sleep(0)
                while len(gate.requests) != inline.MAX_AT_ONCE:
                    await asyncio.sleep(0)
        await asyncio.gather(*orders, return_exceptions=True)

        assert gate.withdrawn == ["request-1"] * inline.MAX_AT_ONCE
        assert (await person.board().nodes())[0]["metadata"]["errorDetails"] == inline.STOPPED
        assert await person.balance() == 100


async def test_more_than_wait_are_refused_and_cost_nothing(
    database: str, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GN62"""
    monkeypatch.setattr(inline, "MAX_WAITING", 1)
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home:
        person = await paying(home)
        orders = [
            asyncio.create_task(person.enqueue(is_shown=False))
            for _ in range(inline.MAX_AT_ONCE + 2)
        ]
        done, _ = await asyncio.wait(orders, return_when=asyncio.FIRST_COMPLETED)
        gate.let.set()
        answers = await asyncio.gather(*orders, return_exceptions=True)

        (refused,) = (answer for answer in answers if isinstance(answer, BaseException))
        assert isinstance(refused, TooMany)
        assert (refused.machine_word, refused.facts["limit"]) == ("backlog_full", 1)
        assert [task.exception() for task in done] == [refused]
        assert await person.balance() == 100 - 4 * (len(orders) - 1)


async def test_what_cannot_be_kept_in_time_is_given_back(database: str, objects_url: str) -> None:
    """GN60"""
    settings = generation_settings(
        database,
        NOWHERE,
        objects_url=objects_url,
        generation_mode="inline",
        worker_long_job_timeout_seconds=1,
    )
    async with house(database, objects_url) as home, generation_service(settings) as alone:
        person = Person(replace(home, generation=alone), home.person().behalf)
        await person.grant(100)
        failed = await person.enqueue(node_id="n1")

        assert failed.job.status == pb.JOB_STATUS_FAILED
        assert await spent(person) == ["job", "refund"]


class Broken(Gate):
    """A model with a fault."""

    async def generate(self, *_: Any) -> bytes:
        """Nothing."""
        raise ZeroDivisionError


async def test_a_fault_fails_its_job_and_tells_nobody_why(database: str, objects_url: str) -> None:
    """GN60"""
    async with inline_house(database, objects_url, Broken()) as home:
        person = await paying(home)
        failed = await person.enqueue(node_id="n1")

        assert failed.job.error == "The job failed."
        assert await spent(person) == ["job", "refund"]


async def test_a_job_of_the_queue_stays_with_the_queue(database: str, objects_url: str) -> None:
    """GN61"""
    async with house(database, objects_url) as home:
        person = await paying(home)
        queued = await person.enqueue(key="once", node_id="n1")
    gate = Gate()
    async with inline_house(database, objects_url, gate) as home:
        back = Person(home, person.behalf)
        again = await back.enqueue(key="once", node_id="n1")
        once_more = await back.enqueue(key="once", node_id="n1")

        assert again.job == queued.job == once_more.job
        assert (again.replayed, again.job.status) == (True, pb.JOB_STATUS_PENDING)
        assert gate.requests == []
        assert await spent(back) == ["job"]


async def test_without_workers_the_queue_carries_nothing_out(
    database: str, objects_url: str
) -> None:
    """GN60"""
    gate = Gate()
    gate.let.set()
    async with house(database, objects_url, {"studio": gate}) as home:
        person = await paying(home)
        queued = await person.enqueue(node_id="n1")
        # A claim that waits passes all that the service does by itself.
        claimed = await home.hand().claim()

        assert queued.job.status == pb.JOB_STATUS_PENDING
        assert [job.job_id for job in claimed] == [queued.job.job_id]
        assert gate.requests == []
        assert (await person.board().nodes())[0]["metadata"]["status"] == "loading"


def test_a_service_with_a_queue_has_no_models() -> None:
    """GN60"""
    script = "import sys, services.generation.server; print('providers.studio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert done.stdout == b"False\n"


def lantern(key: str) -> Draft:
    """What a person of the tests asks for."""
    return drafted(
        Request(
            dedupe_key=key,
            kind="editor_image_generation",
            params={"prompt": "a paper lantern", "size": "64x64"},
            canvas_id="cv_1",
            target=Target("n1", Position(0.0, 0.0)),
        )
    )
