"""Real workers on a real queue, with the studio and with providers that misbehave."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from gesso.assets.v1 import assets_pb2
from gesso.assets.v1.assets_pb2_grpc import AssetsServiceStub
from gesso.generation.v1 import generation_pb2 as pb
from gesso.generation.v1 import provider_calls_pb2 as calls_pb
from gesso.generation.v1.provider_calls_pb2_grpc import ProviderCallServiceStub
from PIL import Image

from providers.image import Accepted, ImageModel, ImageRequest
from servicekit.errors import FailedPrecondition, Invalid
from servicekit.identity import Behalf
from servicekit.objects import Objects
from services.generation import server as generation_server
from services.generation.worker import running
from tests.support.canvases import placeholder
from tests.support.gate import Gate
from tests.support.generation import (
    House,
    Person,
    generation_settings,
    house,
    worker_settings,
)


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test."""
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def person(home: House) -> Person:
    """An account with a hundred credits and a canvas on which a node waits."""
    person = home.person()
    await person.grant(100)
    await person.board().create(placeholder("n1"))
    return person


def working(
    home: House, providers: Mapping[str, ImageModel] | None = None, **changes: Any
) -> AbstractAsyncContextManager[None]:
    """A worker of the house."""
    settings = worker_settings(
        home.generation_address, home.canvas_address, home.objects_url, **changes
    )
    return running(settings, providers)


class Broken:
    """A provider with a fault."""

    async def generate(self, request: ImageRequest, accepted: Accepted) -> bytes:
        """Nothing."""
        raise ZeroDivisionError(request.prompt, accepted)

    async def resume(self, request: ImageRequest, request_id: str) -> bytes:
        """Nothing."""
        raise ZeroDivisionError(request.prompt, request_id)

    async def cancel(self, request_id: str) -> bool:
        """Nothing."""
        raise ZeroDivisionError(request_id)


async def test_a_prompt_becomes_a_picture_on_the_canvas(home: House, person: Person) -> None:
    """GN17"""
    async with working(home):
        job = (await person.enqueue(node_id="n1", size="320x200", prompt="一盏灯笼 🏮")).job
        await home.ends.of(job.job_id)

    (node,) = await person.board().nodes()
    metadata = node["metadata"]
    picture = await _picture(home, person, metadata["storageKey"])
    stub = AssetsServiceStub(home.canvas.channel)
    asset = await home.canvas.call(
        stub.GetAsset, assets_pb2.GetAssetRequest(asset_id=metadata["assetId"]), person.behalf
    )
    assert (node["type"], metadata["status"], metadata["mimeType"]) == (
        "image",
        "success",
        "image/png",
    )
    assert picture.size == (metadata["naturalWidth"], metadata["naturalHeight"]) == (320, 200)
    assert f"resource:{asset.asset.resource_id}" == metadata["storageKey"]
    assert (asset.asset.title, asset.asset.category) == ("一盏灯笼 🏮", "generated")
    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_COMPLETED
    assert await person.balance() == 96


async def test_each_picture_of_a_job_is_another(home: House, person: Person) -> None:
    """GN17"""
    async with working(home):
        job = (await person.enqueue(node_id="n1", count=3, seed=5)).job
        await home.ends.of(job.job_id)

    nodes = await person.board().nodes()
    assert len({node["metadata"]["storageKey"] for node in nodes}) == 3
    assert [node["metadata"]["status"] for node in nodes] == ["success"] * 3


async def test_a_refused_prompt_is_shown_and_refunded(home: House, person: Person) -> None:
    """GN17"""
    async with working(home):
        job = (await person.enqueue(node_id="n1", prompt="something !fail")).job
        await home.ends.of(job.job_id)

    (node,) = await person.board().nodes()
    assert node["metadata"]["errorDetails"] == "The model refused this prompt."
    assert (await person.job(job.job_id)).error == "The model refused this prompt."
    assert await person.balance() == 100


async def test_a_provider_without_capacity_is_asked_again(home: House, person: Person) -> None:
    """GN17"""
    async with working(home):
        job = (await person.enqueue(node_id="n1", prompt="a lantern !429=2")).job
        await home.ends.of(job.job_id)

    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_COMPLETED


async def test_a_provider_without_capacity_for_too_long_is_given_up(
    home: House, person: Person
) -> None:
    """GN17"""
    async with working(home, long_job_timeout_seconds=1):
        job = (await person.enqueue(node_id="n1", prompt="a lantern !429=100")).job
        await home.ends.of(job.job_id)

    assert (await person.job(job.job_id)).error == "The model is too busy; try again later."
    assert await person.balance() == 100


async def test_a_provider_that_hangs_is_cut_off_in_time_to_say_so(
    home: House, person: Person
) -> None:
    """GN17"""
    async with working(home, long_job_timeout_seconds=1):
        job = (await person.enqueue(node_id="n1", prompt="a lantern !hang")).job
        await home.ends.of(job.job_id)

    assert (await person.job(job.job_id)).error == "The model took too long."
    assert await person.balance() == 100


async def test_a_fault_of_a_provider_fails_its_job_and_no_other(
    home: House, person: Person
) -> None:
    """GN17"""
    gate = Gate()
    async with working(home, {"studio": Broken()}):
        broken = (await person.enqueue(node_id="n1")).job
        await home.ends.of(broken.job_id)
    gate.let.set()
    async with working(home, {"studio": gate}):
        fine = (await person.enqueue(node_id="n1")).job
        await home.ends.of(fine.job_id)

    assert (await person.job(broken.job_id)).error == "The job failed."
    assert (await person.job(fine.job_id)).status == pb.JOB_STATUS_COMPLETED


async def test_leases_are_kept_alive_while_the_provider_works(home: House, person: Person) -> None:
    """GN18"""
    gate = Gate()
    async with working(home, {"studio": gate}, lease_seconds=1):
        job = (await person.enqueue(node_id="n1")).job
        await gate.was_asked()
        async with asyncio.timeout(10):
            while len(await home.fetch(RENEWALS)) < 4:
                await asyncio.sleep(0.02)
        gate.let.set()
        await home.ends.of(job.job_id)

    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_COMPLETED


async def test_a_lost_lease_stops_the_work(home: House, person: Person) -> None:
    """GN18"""
    gate = Gate()
    async with working(home, {"studio": gate}, lease_seconds=1), asyncio.timeout(10):
        job = (await person.enqueue(node_id="n1")).job
        await gate.was_asked()
        await home.expire(job.job_id)

        await gate.cancelled.wait()
        await home.ends.of(job.job_id)

    assert (await person.job(job.job_id)).error == "The job ran out of time."
    assert await person.balance() == 100


async def test_a_job_that_is_taken_back_stops_the_work(home: House, person: Person) -> None:
    """GN25"""
    gate = Gate()
    async with working(home, {"studio": gate}, lease_seconds=1), asyncio.timeout(10):
        job = (await person.enqueue(node_id="n1")).job
        await gate.was_asked()

        await person.cancel(job.job_id)

        await gate.cancelled.wait()
    await home.delivered()

    (node,) = await person.board().nodes()
    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_CANCELLED
    assert node["metadata"]["status"] == "idle"
    assert await person.balance() == 100


async def test_a_job_that_is_taken_back_is_cancelled_at_its_provider(
    home: House, person: Person
) -> None:
    """GN30"""
    gate = Gate(request_id="p-1")
    async with working(home, {"studio": gate}, lease_seconds=1), asyncio.timeout(10):
        job = (await person.enqueue(node_id="n1")).job
        await gate.was_asked()
        await person.cancel(job.job_id)
        await gate.cancelled.wait()

    (call,) = await home.fetch("SELECT outcome, request_id FROM generation.provider_call")
    assert gate.withdrawn == ["p-1"]
    assert tuple(call) == ("cancelled", "p-1")
    assert await home.uncertain() == []


async def test_a_job_whose_worker_was_lost_is_gone_on_with_and_asked_for_once(
    home: House, person: Person
) -> None:
    """GN30"""
    lost, found = Gate(request_id="p-1", is_stubborn=True), Gate(request_id="p-2")
    async with working(home, {"studio": lost}, concurrency=1, lease_seconds=3600):
        job = (await person.enqueue(node_id="n1")).job
        await lost.was_asked()
        await home.expire(job.job_id)
        found.let.set()
        async with working(home, {"studio": found}):
            await home.ends.of(job.job_id)
        lost.let.set()

    shown = await person.job(job.job_id)
    (row,) = await home.fetch("SELECT attempt, resumes FROM generation.job")
    assert shown.status == pb.JOB_STATUS_COMPLETED
    assert (found.resumed, tuple(row)) == (["p-1"], (1, 1))
    assert await person.balance() == 96


async def test_what_a_provider_did_not_do_does_not_keep_a_job_from_going_on(
    home: House, person: Person
) -> None:
    """GN30"""
    hand, job = home.hand(), (await person.enqueue(is_shown=False)).job
    (attempt,) = await hand.claim()
    await hand.call(attempt, 1, request_id="p-1")
    await hand.call(attempt, 2)
    await home.execute(
        "UPDATE generation.provider_call SET outcome = 'failed', settled_at = now()"
        " WHERE number = 2"
    )
    await home.expire(job.job_id)

    (again,) = await hand.claim()

    assert (again.lease_token, again.attempt) == (2, 1)


async def test_a_job_that_was_claimed_before_that_was_noted_is_completed(
    home: House, person: Person
) -> None:
    """GN29"""
    hand = home.hand()
    await person.enqueue(is_shown=False)
    (attempt,) = await hand.claim()
    await home.execute("UPDATE generation.job SET claimed_at = NULL")

    assert await hand.complete(attempt) == [pb.LEASE_OUTCOME_OK]


async def test_a_job_is_gone_on_with_so_often_and_then_failed(home: House, person: Person) -> None:
    """GN30"""
    hand, job = home.hand(), (await person.enqueue(is_shown=False)).job
    for token in range(1, 5):
        (attempt,) = await hand.claim()
        assert (attempt.lease_token, attempt.attempt) == (token, 1)
        if token == 1:
            await hand.call(attempt, request_id="p-1")
        await home.expire(job.job_id)

    assert await hand.claim() == []
    assert (await person.job(job.job_id)).error == "The job ran out of time."
    assert [call.request_id for call in await home.uncertain()] == ["p-1"]


async def test_a_call_that_was_lost_is_uncertain_and_never_made_again(
    home: House, person: Person
) -> None:
    """GN30, GN31"""
    hand, job = home.hand(), (await person.enqueue(is_shown=False)).job
    await home.execute("UPDATE generation.job SET max_attempts = 2")
    (attempt,) = await hand.claim()
    assert await hand.call(attempt) == (True, None)
    # The answer may have been lost: the same attempt may go ahead.
    assert await hand.call(attempt) == (True, None)
    assert await home.uncertain() == []
    await home.expire(job.job_id)
    gate = Gate()
    async with working(home, {"studio": gate}):
        async with asyncio.timeout(10):
            while await home.uncertain() == []:
                await asyncio.sleep(0)

    shown = await person.job(job.job_id)
    assert (shown.status, shown.error) == (pb.JOB_STATUS_FAILED, "The model's answer was lost.")
    assert not gate.asked.is_set()
    assert await person.balance() == 100


async def test_what_a_provider_did_not_do_may_be_asked_for_again(
    home: House, person: Person
) -> None:
    """GN30"""
    async with working(home):
        job = (await person.enqueue(node_id="n1", prompt="a lantern !429=2")).job
        await home.ends.of(job.job_id)

    events = await home.fetch(
        "SELECT detail FROM generation.event WHERE kind = 'provider_settled' ORDER BY key"
    )
    assert [event["detail"] for event in events] == [
        "1 failed as directed",
        "1 failed as directed",
        "1 succeeded",
    ]
    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_COMPLETED


async def test_an_uncertain_call_is_listed_until_it_is_resolved(
    home: House, person: Person
) -> None:
    """GN31"""
    async with working(home):
        job = (await person.enqueue(node_id="n1", prompt="a lantern !cut")).job
        await home.ends.of(job.job_id)
    (call,) = await home.uncertain()

    await home.resolve(job.job_id, 1)

    with pytest.raises(FailedPrecondition) as refused:
        await home.resolve(job.job_id, 1)
    assert (call.job_id, call.number, call.model) == (job.job_id, 1, "studio")
    assert call.account_id == person.account_id
    assert refused.value.machine_word == "call_not_uncertain"
    assert await home.uncertain() == []
    assert (await person.job(job.job_id)).error == "The model's answer was lost."
    assert await person.balance() == 100


async def test_a_stale_attempt_can_begin_nothing(home: House, person: Person) -> None:
    """GN30"""
    hand, job = home.hand(), (await person.enqueue(is_shown=False)).job
    (attempt,) = await hand.claim()
    await home.expire(job.job_id)

    with pytest.raises(FailedPrecondition) as refused:
        await hand.call(attempt)

    assert refused.value.machine_word == "lease_fenced"
    assert await home.fetch("SELECT FROM generation.provider_call") == []


@pytest.mark.parametrize(
    ("report", "path"),
    [
        ({"request_id": ""}, "requestId"),
        ({"request_id": "x" * 501}, "requestId"),
        ({"outcome": 0}, "outcome"),
        ({"outcome": 77}, "outcome"),
        ({"outcome": 1, "detail": "x" * 501}, "detail"),
        ({"number": 0, "outcome": 1}, "number"),
        ({}, "outcome"),
    ],
)
async def test_a_report_that_cannot_be_is_refused(
    home: House, report: dict[str, Any], path: str
) -> None:
    """GN30"""
    stub = ProviderCallServiceStub(home.generation.channel)
    request = calls_pb.ReportCallRequest(**{"number": 1, **report})

    with pytest.raises(Invalid) as refused:
        await home.generation.call(stub.ReportCall, request, Behalf())

    assert refused.value.facts["path"] == path


async def test_what_comes_late_but_within_the_lease_still_counts(
    home: House, person: Person
) -> None:
    """GN17"""
    gate = Gate(is_stubborn=True)
    async with (
        working(home, {"studio": gate}, concurrency=1, long_job_timeout_seconds=1),
        asyncio.timeout(10),
    ):
        late = (await person.enqueue(node_id="n1")).job
        await gate.cancelled.wait()
        gate.asked.clear()
        next_ = (await person.enqueue(node_id="n1")).job
        # The slot is free again once the budget of the first job is over.
        await gate.was_asked()
        gate.let.set()
        await home.ends.of(late.job_id, next_.job_id)

    assert (await person.job(late.job_id)).status == pb.JOB_STATUS_COMPLETED


async def test_a_worker_that_is_told_to_stop_ends_its_jobs_and_claims_no_more(
    home: House, person: Person
) -> None:
    """GN18"""
    gate = Gate()
    async with working(home, {"studio": gate}, concurrency=1):
        job = (await person.enqueue(node_id="n1")).job
        waiting = (await person.enqueue(node_id="n1")).job
        await gate.was_asked()
        asyncio.get_running_loop().call_soon(gate.let.set)

    await home.ends.of(job.job_id)
    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_COMPLETED
    assert (await person.job(waiting.job_id)).status == pb.JOB_STATUS_PENDING


async def test_a_job_that_outlasts_the_drain_is_failed_and_refunded(
    home: House, person: Person
) -> None:
    """GN18"""
    gate = Gate()
    async with working(home, {"studio": gate}, drain_seconds=0.1):
        job = (await person.enqueue(node_id="n1")).job
        await gate.was_asked()

    await home.ends.of(job.job_id)
    shown = await person.job(job.job_id)
    assert shown.error == "The worker was stopped before the job was done."
    assert await person.balance() == 100


async def test_a_queue_that_is_down_is_asked_until_it_is_back(
    home: House, person: Person, objects_url: str
) -> None:
    """GN18"""

    address = "127.0.0.1:0"
    settings = generation_settings(home.database_url, home.canvas_address)
    async with generation_server.serving(settings) as port:
        address = f"127.0.0.1:{port}"
    async with running(worker_settings(address, home.canvas_address, objects_url)):
        job = (await person.enqueue(node_id="n1")).job
        again = generation_settings(home.database_url, home.canvas_address, listen=address)
        async with generation_server.serving(again):
            await home.ends.of(job.job_id)

    assert (await person.job(job.job_id)).status == pb.JOB_STATUS_COMPLETED


RENEWALS = "SELECT key FROM generation.event WHERE kind = 'lease_renewed'"


async def _picture(home: House, person: Person, storage_key: str) -> Image.Image:
    stub = AssetsServiceStub(home.canvas.channel)
    resource_id = storage_key.removeprefix("resource:")
    response = await home.canvas.call(
        stub.GetResource, assets_pb2.GetResourceRequest(resource_id=resource_id), person.behalf
    )
    resource = response.resource
    objects = Objects.at(home.objects_url)
    chunks = [chunk async for chunk in objects.read(resource.sha256, 0, resource.size_bytes)]
    return Image.open(io.BytesIO(b"".join(chunks)))
