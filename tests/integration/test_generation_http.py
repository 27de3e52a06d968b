"""Jobs as a browser sees them: gateway, generation, a worker and canvas, all real."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.generation.worker import running
from tests.support.generation import House, house, worker_settings
from tests.support.services import browser, gateway, gateway_settings

GENERATIONS = "/api/canvas-projects/c/generations"


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test."""
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def anna(home: House) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who has just signed up, with a canvas."""
    addresses = {"canvas": home.canvas_address, "generation": home.generation_address}
    settings = gateway_settings(
        home.database_url, home.objects_url, addresses, signup_grant_credits=1000
    )
    async with gateway(settings) as address, browser(address) as client:
        create = {"type": "create_canvas", "canvas": {"title": "A canvas"}}
        await client.patch(
            "/api/canvas-projects/c/operations",
            json={"mutationId": "m", "baseRevision": 0, "operations": [create]},
        )
        yield client


def wanted(**params: Any) -> dict[str, Any]:
    return {
        "kind": "editor_image_generation",
        "params": {"prompt": "一盏灯笼", "size": "128x96", **params},
        "canvasCompletion": {"position": {"x": 1, "y": 2}},
    }


async def test_an_order_sent_twice_is_one_picture_on_the_canvas(
    home: House, anna: httpx.AsyncClient
) -> None:
    """GN2"""
    key = {"Idempotency-Key": "once"}
    worker = worker_settings(home.generation_address, home.canvas_address, home.objects_url)
    async with running(worker):
        first = await anna.post(GENERATIONS, json=wanted(), headers=key)
        again = await anna.post(GENERATIONS, json=wanted(), headers=key)
        job_id = first.json()["operation"]["operationId"]
        await home.ends.of(job_id)

    job = await anna.get(f"/api/runtime/external-generation/jobs/{job_id}")
    (node,) = (await anna.get("/api/canvas-projects/c")).json()["nodes"]
    resource_id = node["metadata"]["storageKey"].removeprefix("resource:")
    file = await anna.get(f"/api/resources/{resource_id}/file")
    wallet = (await anna.get("/api/wallet")).json()
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert job.json()["status"] == "completed"
    assert (node["metadata"]["naturalWidth"], node["position"]) == (128, {"x": 1, "y": 2})
    assert file.content.startswith(b"\x89PNG")
    assert wallet["balanceCredits"] == 996


async def test_nobody_can_take_the_place_of_a_picture_that_is_being_drawn(
    home: House, anna: httpx.AsyncClient
) -> None:
    """GN9"""
    ordered = await anna.post(GENERATIONS, json=wanted(count=2))
    job_id = ordered.json()["operation"]["operationId"]
    taken = await anna.post(
        "/api/resources",
        files={"file": ("a", b"mine")},
        data={"kind": "file"},
        headers={"Idempotency-Key": f"job:{job_id}:2"},
    )
    async with running(
        worker_settings(home.generation_address, home.canvas_address, home.objects_url)
    ):
        await home.ends.of(job_id)

    job = await anna.get(f"/api/runtime/external-generation/jobs/{job_id}")
    assert taken.status_code == 201
    assert job.json()["status"] == "completed"


async def test_what_is_wrong_is_listed_by_path_and_costs_nothing(anna: httpx.AsyncClient) -> None:
    """GN1"""
    answer = await anna.post(GENERATIONS, json=wanted(size="1x1", wings=2))

    problem = answer.json()
    assert (answer.status_code, problem["reason"]) == (422, "invalid_argument")
    assert [error["path"] for error in problem["errors"]] == ["params.size", "params.wings"]
    assert (await anna.get("/api/wallet")).json()["balanceCredits"] == 1000


async def test_nothing_is_ordered_for_a_canvas_that_is_not_there(anna: httpx.AsyncClient) -> None:
    """GW12"""
    answer = await anna.post("/api/canvas-projects/never/generations", json=wanted())

    assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")
    assert (await anna.get("/api/wallet")).json()["balanceCredits"] == 1000


async def test_what_cannot_be_paid_is_402(anna: httpx.AsyncClient) -> None:
    """GN3"""
    answers = await asyncio.gather(
        *(anna.post(GENERATIONS, json=wanted(count=8)) for _ in range(32))
    )

    refused = [answer for answer in answers if answer.status_code != 202]
    assert [answer.status_code for answer in refused] == [402]
    assert refused[0].json()["reason"] == "insufficient_balance"
    assert (await anna.get("/api/wallet")).json()["balanceCredits"] == 8


async def test_a_job_is_taken_back_and_its_end_is_seen_once(anna: httpx.AsyncClient) -> None:
    """GN25, GN26"""
    jobs = "/api/runtime/external-generation/jobs"
    ordered = await anna.post(GENERATIONS, json=wanted())
    job_id = ordered.json()["operation"]["operationId"]

    cancelled = await anna.post(f"{jobs}/{job_id}/cancel")
    overview = await anna.get("/api/runtime/external-generation/queue-overview")
    unseen = await anna.get(jobs, params={"statuses": "cancelled"})
    noted = await anna.post(f"{jobs}/acknowledge", json={"jobIds": [job_id]})
    seen = await anna.get(jobs)
    all_of_them = await anna.get(jobs, params={"includeAcknowledgedTerminal": "true"})

    job = cancelled.json()["job"]
    assert (cancelled.status_code, job["status"]) == (200, "cancelled")
    assert (await anna.get("/api/wallet")).json()["entries"][0]["id"] == job["refundLedgerId"]
    assert overview.json()["unacknowledged"] == 1
    assert [each["jobId"] for each in unseen.json()["jobs"]] == [job_id]
    assert noted.json()["jobs"][0]["notificationAcknowledgedAt"].endswith("Z")
    assert seen.json()["jobs"] == []
    assert [each["jobId"] for each in all_of_them.json()["jobs"]] == [job_id]


async def test_what_is_over_is_409_and_what_is_not_there_404(
    home: House, anna: httpx.AsyncClient
) -> None:
    """GN25"""
    jobs = "/api/runtime/external-generation/jobs"
    ordered = await anna.post(GENERATIONS, json=wanted(prompt="a lantern !fail"))
    job_id = ordered.json()["operation"]["operationId"]
    async with running(
        worker_settings(home.generation_address, home.canvas_address, home.objects_url)
    ):
        await home.ends.of(job_id)

    over = await anna.post(f"{jobs}/{job_id}/cancel")
    nothing = await anna.post(f"{jobs}/extgen-none/cancel")
    none = await anna.post(f"{jobs}/acknowledge", json={"jobIds": []})

    assert (over.status_code, over.json()["reason"]) == (409, "job_finishing")
    assert (nothing.status_code, nothing.json()["reason"]) == (404, "not_found")
    assert (none.status_code, none.json()["errors"][0]["path"]) == (422, "jobIds")
