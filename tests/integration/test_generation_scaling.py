"""The numbers of the queue, and who scales by them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
from externalscaler import externalscaler_pb2 as scaler_pb
from externalscaler.externalscaler_pb2_grpc import ExternalScalerStub
from gesso.generation.v1 import generation_pb2 as pb
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub

from services.generation import stats as stats_module
from services.generation.worker import running
from suite.constellation import free_port
from tests.support.everything import order, suite
from tests.support.generation import (
    House,
    generation_service,
    generation_settings,
    house,
    worker_settings,
)
from tests.support.services import NOWHERE

if TYPE_CHECKING:  # in its stubs only
    from externalscaler.externalscaler_pb2_grpc import ExternalScalerAsyncStub as Keda

    Stream = grpc.aio.UnaryStreamCall[scaler_pb.ScaledObjectRef, scaler_pb.IsActiveResponse]
else:
    Keda = ExternalScalerStub

METRIC = "unfinished-generation-jobs"


@pytest.fixture
async def home(
    database: str, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    """Services of its own for each test, whose numbers are of now."""
    monkeypatch.setattr(stats_module, "MAX_AGE_SECONDS", 0.0)
    async with house(database, objects_url, running_limit=10) as services:
        yield services


async def numbers(home: House, enough: Callable[[pb.GetQueueStatsResponse], bool]) -> None:
    """Waits until the numbers are as wanted."""
    async with asyncio.timeout(15):
        while not enough(await home.stats()):
            await asyncio.sleep(0.02)


async def test_an_empty_queue_has_nothing_to_count(home: House) -> None:
    """GN40"""
    stats = await home.stats()

    assert stats == pb.GetQueueStatsResponse()
    assert not stats.HasField("oldest_wait")


async def test_each_job_is_counted_where_it_is(home: House) -> None:
    """GN40"""
    person, hand = home.person(), home.hand()
    await person.grant(100)
    for _ in range(6):
        await person.enqueue()
    lives, expires, reported = await hand.claim(3)
    await home.expire(expires.job_id)
    # No canvas: what is reported stays on its way until it is looked at.
    await home.execute(
        "UPDATE generation.job SET status = 'delivering', worker_id = NULL, lease_until = NULL, "
        "deliver_at = now() + interval '1 hour' WHERE job_id = $1",
        reported.job_id,
    )
    waiting = await home.fetch("SELECT key FROM generation.job WHERE status = 'pending'")
    await home.execute(
        "UPDATE generation.job SET available_at = now() + interval '1 hour' WHERE key = $1",
        waiting[0]["key"],
    )
    await home.execute(
        "UPDATE generation.job SET available_at = now() - interval '90 seconds' WHERE key = $1",
        waiting[1]["key"],
    )

    stats = await home.stats()

    assert (stats.claimable_pending, stats.delayed_pending) == (2, 1)
    assert (stats.running_active, stats.expired_running) == (1, 1)
    assert (stats.blocked_pending, stats.waiting) == (0, 0)
    assert stats.delivering == 1
    assert 90 <= stats.oldest_wait.ToSeconds() < 120
    assert lives.job_id != expires.job_id


async def test_what_has_no_turn_or_no_room_in_its_channel_needs_no_worker(
    database: str, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GN40 GN43"""
    monkeypatch.setattr(stats_module, "MAX_AGE_SECONDS", 0.0)
    async with house(database, objects_url, running_limit=3, channel_limits="studio=2") as home:
        person = home.person()
        await person.grant(100)
        for _ in range(4):
            await person.enqueue()
        before = await home.stats()
        await home.hand().claim()
        after = await home.stats()

    assert (before.claimable_pending, before.blocked_pending, before.waiting) == (2, 1, 1)
    assert (after.claimable_pending, after.blocked_pending, after.waiting) == (1, 1, 1)
    assert (before.running_active, after.running_active) == (0, 1)


async def test_workers_are_seen_by_every_instance_while_they_wait_and_renew(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GN41"""
    monkeypatch.setattr("services.generation.workers.WORKER_SECONDS", 0.0)
    monkeypatch.setattr("services.generation.workers.QUIET_SECONDS", 0.0)
    person = home.person()
    await person.grant(100)
    await person.enqueue()
    busy, waiting = home.hand(), home.hand()
    (job,) = await busy.claim()
    settings = generation_settings(home.database_url, NOWHERE)
    async with generation_service(settings) as other:
        at_the_other = type(busy)(other, waiting.worker_id)
        long_poll = asyncio.create_task(at_the_other.claim(wait=20))
        await numbers(home, lambda stats: stats.workers == 2)
        # A minute passes, in which the one renews and the other still waits.
        for _ in range(2):
            await home.execute(
                "UPDATE generation.worker SET seen_at = now() - interval '61 seconds'"
            )
            await busy.renew(job)
            await numbers(home, lambda stats: stats.workers == 2)

        long_poll.cancel()
        await asyncio.wait([long_poll])


async def test_a_worker_that_is_gone_is_not_counted_and_forgotten_in_a_day(home: House) -> None:
    """GN41"""
    await home.hand().claim()
    await numbers(home, lambda stats: stats.workers == 1)
    await home.execute("UPDATE generation.worker SET seen_at = now() - interval '61 seconds'")
    gone = await home.stats()
    await home.execute("UPDATE generation.worker SET seen_at = now() - interval '25 hours'")
    await home.hand().claim()
    await numbers(home, lambda stats: stats.workers == 1)

    assert gone.workers == 0
    assert len(await home.fetch("SELECT worker_id FROM generation.worker")) == 1


async def test_without_workers_jobs_stay_queued_and_readiness_says_so(home: House) -> None:
    """GN41 GW8"""
    worker = worker_settings(home.generation_address, home.canvas_address, home.objects_url)
    said = "There are no workers: jobs stay queued until one comes."
    async with suite(home) as everything:
        job_id = await order(everything.anna)
        path = f"/api/runtime/external-generation/jobs/{job_id}"
        # A service that has just begun may not say yet that it serves.
        await readiness(everything.anna, status="degraded", wrong={"generation": said})
        alone = (await everything.anna.get(path)).json()["status"]
        async with running(worker):
            await readiness(everything.anna, status="ok", wrong={})
            async with asyncio.timeout(60):
                while (await everything.anna.get(path)).json()["status"] == "queued":
                    await asyncio.sleep(0.02)

    assert alone == "queued"


async def readiness(client: httpx.AsyncClient, *, status: str, wrong: dict[str, str]) -> None:
    """Waits until the suite says so of itself, as one that works."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get("/readyz")
            assert answer.status_code == 200
            found = {name: said for name, said in answer.json()["checks"].items() if said != "ok"}
            if (answer.json()["status"], found) == (status, wrong):
                return
            await asyncio.sleep(0.05)


async def test_the_numbers_are_told_as_metrics(database: str) -> None:
    """GN40"""
    listen = f"127.0.0.1:{free_port()}"
    settings = generation_settings(database, NOWHERE, metrics_listen=listen)
    async with generation_service(settings), httpx.AsyncClient() as client:
        text = ""
        async with asyncio.timeout(15):
            while "gesso_generation_workers 0.0" not in text:
                text = (await client.get(f"http://{listen}/metrics")).text

    assert 'gesso_generation_jobs{state="claimable_pending"} 0.0' in text
    assert "gesso_generation_oldest_wait_seconds 0.0" in text


@pytest.fixture
async def keda(home: House, stack: AsyncExitStack) -> Keda:
    """KEDA's side of a second instance, which shows no token of ours."""
    listen = f"127.0.0.1:{free_port()}"
    settings = generation_settings(
        home.database_url,
        home.canvas_address,
        scaler_listen=listen,
        controller_target_jobs_per_worker=3,
    )
    await stack.enter_async_context(generation_service(settings))
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(listen))
    return ExternalScalerStub(channel)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is closed at the end of a test."""
    async with AsyncExitStack() as stack:
        yield stack


def scaled(**metadata: str) -> scaler_pb.ScaledObjectRef:
    return scaler_pb.ScaledObjectRef(
        name="generation-worker", namespace="gesso", scalerMetadata=metadata
    )


async def told(stream: "Stream") -> bool:
    answer = await stream.read()
    assert isinstance(answer, scaler_pb.IsActiveResponse)
    return answer.result


async def test_keda_is_told_the_unfinished_jobs_and_how_many_a_worker_takes(
    home: House, keda: Keda
) -> None:
    """GN42"""
    idle = await keda.IsActive(scaled())
    person, hand = home.person(), home.hand()
    await person.grant(100)
    for _ in range(4):
        await person.enqueue()
    _, expired = await hand.claim(2)
    await home.expire(expired.job_id)

    busy = await keda.IsActive(scaled())
    request = scaler_pb.GetMetricsRequest(scaledObjectRef=scaled(), metricName=METRIC)
    (value,) = (await keda.GetMetrics(request)).metricValues
    (default,) = (await keda.GetMetricSpec(scaled())).metricSpecs
    (said,) = (await keda.GetMetricSpec(scaled(targetJobsPerWorker="5"))).metricSpecs

    assert (idle.result, busy.result) == (False, True)
    assert (value.metricName, value.metricValue, value.metricValueFloat) == (METRIC, 4, 4)
    assert (default.metricName, default.targetSize, default.targetSizeFloat) == (METRIC, 3, 3)
    assert (said.targetSize, said.targetSizeFloat) == (5, 5)


@pytest.mark.parametrize("target", ["0", "-1", "1001", "two", "2.5", "", " 2", "２", "9" * 5000])
async def test_a_target_that_is_none_is_refused_with_a_sentence(keda: Keda, target: str) -> None:
    """GN42"""
    wrong = scaled(targetJobsPerWorker=target)
    for call in (
        keda.IsActive(wrong),
        keda.GetMetricSpec(wrong),
        keda.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=wrong, metricName=METRIC)),
        keda.StreamIsActive(wrong).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "targetJobsPerWorker is a whole number of 1 to 1000."


async def test_a_metric_that_there_is_not_is_refused(keda: Keda) -> None:
    """GN42"""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await keda.GetMetrics(scaler_pb.GetMetricsRequest(metricName="other"))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_keda_hears_at_once_that_there_is_work_and_that_there_is_none(
    home: House, keda: Keda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GN42"""
    person, hand = home.person(), home.hand()
    await person.grant(100)
    # Only a wake-up can tell it soon, and the job comes to the other instance.
    monkeypatch.setattr("services.generation.scaler_rpc.LOOK_SECONDS", 3_600)
    stream = keda.StreamIsActive(scaled())
    assert await told(stream) is False
    await person.enqueue(is_shown=False)
    async with asyncio.timeout(15):
        assert await told(stream) is True
    monkeypatch.setattr("services.generation.scaler_rpc.LOOK_SECONDS", 0.02)
    late = keda.StreamIsActive(scaled())
    assert await told(late) is True
    (job,) = await hand.claim()
    await hand.complete(job)

    async with asyncio.timeout(15):
        assert await told(late) is False
    for each in (stream, late):
        each.cancel()


async def test_a_stream_of_keda_ends_when_the_service_does(home: House) -> None:
    """GN42"""
    listen = f"127.0.0.1:{free_port()}"
    settings = generation_settings(home.database_url, home.canvas_address, scaler_listen=listen)
    async with grpc.aio.insecure_channel(listen) as channel:
        async with generation_service(settings):
            stream = ExternalScalerStub(channel).StreamIsActive(scaled())
            assert await told(stream) is False

        assert await stream.read() is grpc.aio.EOF


async def test_the_scaler_tells_nothing_else_and_is_not_served_unasked(home: House) -> None:
    """GN42"""
    listen = f"127.0.0.1:{free_port()}"
    settings = generation_settings(home.database_url, home.canvas_address, scaler_listen=listen)
    async with generation_service(settings), grpc.aio.insecure_channel(listen) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await GenerationServiceStub(channel).GetQueueStats(pb.GetQueueStatsRequest())
    async with generation_service(
        generation_settings(home.database_url, home.canvas_address)
    ) as plain:
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await ExternalScalerStub(plain.channel).IsActive(scaled())

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
