"""A generation service with all that it needs, and those who use it: people and workers."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
from gesso.generation.v1 import generation_pb2 as pb
from gesso.generation.v1 import provider_calls_pb2 as calls_pb
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from gesso.generation.v1.provider_calls_pb2_grpc import ProviderCallServiceStub
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import WalletServiceStub
from google.protobuf.duration_pb2 import Duration

from providers.image import ImageModel
from servicekit.client import Client
from servicekit.identity import Behalf
from servicekit.notifications import listening
from servicekit.objects import ObjectSettings
from servicekit.postgres import DatabaseSettings
from services.canvas import server as canvas_server
from services.generation import server as generation_server
from services.generation.settings import Settings, WorkerSettings
from services.generation.wakeups import CHANGED
from tests.support.canvases import Board
from tests.support.services import TOKEN, canvas_settings, connected, new_account

CREDIT = 1_000_000
IMAGE_MICROS = 4 * CREDIT


def generation_settings(database_url: str, canvas_address: str, **changes: object) -> Settings:
    """Settings for a generation service that does not keep a test waiting."""
    settings = Settings(
        internal_tokens=TOKEN,
        listen="127.0.0.1:0",
        drain_seconds=5,
        database=DatabaseSettings(database_url=database_url),
        canvas_address=canvas_address,
        poll_seconds=0.05,
        delivery_pause_seconds=0.02,
    )
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def generation_service(settings: Settings) -> AsyncIterator[Client]:
    """A generation service, and a client of it."""
    async with generation_server.serving(settings) as port, connected(port) as made:
        yield made


def worker_settings(
    generation_address: str, canvas_address: str, objects_url: str, **changes: object
) -> WorkerSettings:
    """Settings for a worker that claims at once and has little time for a job."""
    settings = WorkerSettings(
        internal_tokens=TOKEN,
        drain_seconds=10,
        objects=ObjectSettings(objects_url=objects_url),
        generation_address=generation_address,
        canvas_address=canvas_address,
        poll_interval_ms=200,
        lease_seconds=30,
        long_job_timeout_seconds=20,
    )
    return msgspec.structs.replace(settings, **changes)


_NOT_OVER = """
SELECT cardinality($1::text[]) - count(*)
  FROM generation.summary
 WHERE job_id = ANY($1)
   AND ended_at IS NOT NULL
"""


@dataclass
class Ends:
    """The jobs that are over, looked at whenever a change is announced."""

    database_url: str
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, _payload: str) -> None:
        """Takes note of a change."""
        self.news.set()

    async def of(self, *job_ids: str) -> None:
        """Waits until all of the jobs are over."""
        connection = await asyncpg.connect(self.database_url)
        try:
            async with asyncio.timeout(20):
                while await connection.fetchval(_NOT_OVER, job_ids):
                    await self.news.wait()
                    self.news.clear()
        finally:
            await connection.close()


@dataclass
class House:
    """A canvas service and a generation service on one database."""

    database_url: str
    objects_url: str
    canvas: Client
    canvas_address: str
    generation: Client
    generation_address: str
    ends: Ends

    def person(self) -> "Person":
        """An account that no other test has."""
        return Person(self, new_account())

    def hand(self) -> "Hand":
        """A worker's side of the queue, with an id of its own."""
        return Hand(self.generation, f"hand-{secrets.token_hex(4)}")

    async def stats(self) -> pb.GetQueueStatsResponse:
        """The numbers of the whole queue."""
        stub = GenerationServiceStub(self.generation.channel)
        return await self.generation.call(stub.GetQueueStats, pb.GetQueueStatsRequest(), Behalf())

    async def execute(self, statement: str, *arguments: Any) -> None:
        """Changes what is stored behind the service's back, to move time."""
        connection = await asyncpg.connect(self.database_url)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        """Reads what is stored."""
        connection = await asyncpg.connect(self.database_url)
        try:
            return list(await connection.fetch(statement, *arguments))
        finally:
            await connection.close()

    async def uncertain(self) -> list[calls_pb.UncertainCall]:
        """The calls of providers whose outcome nobody knows."""
        stub = ProviderCallServiceStub(self.generation.channel)
        request = calls_pb.ListUncertainCallsRequest()
        return list((await self.generation.call(stub.ListUncertainCalls, request, Behalf())).calls)

    async def resolve(self, job_id: str, number: int) -> None:
        """Says that a call failed."""
        stub = ProviderCallServiceStub(self.generation.channel)
        request = calls_pb.ResolveCallRequest(
            job_id=job_id, number=number, outcome=calls_pb.PROVIDER_OUTCOME_FAILED
        )
        await self.generation.call(stub.ResolveCall, request, Behalf())

    async def delivered(self) -> None:
        """Waits until nothing is on its way to a canvas."""
        async with asyncio.timeout(10):
            while await self.fetch("SELECT FROM generation.job WHERE deliver_at IS NOT NULL"):
                await asyncio.sleep(0)

    async def expire(self, job_id: str) -> None:
        """Lets the lease of a job be over."""
        await self.execute(
            "UPDATE generation.job SET lease_until = now() - interval '1 second' WHERE job_id = $1",
            job_id,
        )


@asynccontextmanager
async def house(
    database_url: str,
    objects_url: str,
    providers: Mapping[str, ImageModel] | None = None,
    **changes: object,
) -> AsyncIterator[House]:
    """Both services, and clients of them. `providers` make the pictures of inline jobs."""
    ends, stands = Ends(database_url), asyncio.Event()
    async with canvas_server.serving(canvas_settings(database_url, objects_url)) as canvas_port:
        canvas_address = f"127.0.0.1:{canvas_port}"
        settings = generation_settings(
            database_url, canvas_address, objects_url=objects_url, **changes
        )
        async with (
            generation_server.serving(settings, providers) as port,
            connected(canvas_port) as canvas,
            connected(port) as generation,
            listening(database_url, CHANGED, heard=ends.heard, missed=stands.set),
        ):
            await stands.wait()
            yield House(
                database_url=database_url,
                objects_url=objects_url,
                canvas=canvas,
                canvas_address=canvas_address,
                generation=generation,
                generation_address=f"127.0.0.1:{port}",
                ends=ends,
            )


class Person:
    """An account and what it asks for."""

    def __init__(self, house: House, behalf: Behalf) -> None:
        assert behalf.account_id is not None
        self.account_id = behalf.account_id
        self.behalf = behalf
        self._house = house
        self._client = house.generation
        self._stub = GenerationServiceStub(house.generation.channel)
        self._wallet = WalletServiceStub(house.generation.channel)

    def board(self, canvas_id: str = "cv_1") -> Board:
        """A canvas of the account."""
        return Board(self._house.canvas, self.behalf, canvas_id)

    async def grant(self, amount: int, reference: str | None = None) -> wallet_pb2.Entry:
        """Gives the account credits."""
        request = wallet_pb2.GrantRequest(
            amount_micros=amount * CREDIT, reference=reference or f"test:{secrets.token_hex(8)}"
        )
        response = await self._client.call(self._wallet.Grant, request, self.behalf)
        return response.entry

    async def wallet(self, **request: Any) -> wallet_pb2.GetWalletResponse:
        """Balance and ledger."""
        return await self._client.call(
            self._wallet.GetWallet, wallet_pb2.GetWalletRequest(**request), self.behalf
        )

    async def balance(self) -> int:
        """In whole credits."""
        return (await self.wallet()).balance_micros // CREDIT

    async def enqueue(
        self,
        *,
        key: str | None = None,
        kind: str = "editor_image_generation",
        canvas_id: str = "cv_1",
        node_id: str | None = None,
        position: tuple[float, float] | None = None,
        is_shown: bool = True,
        priority: int = 0,
        **params: Any,
    ) -> pb.EnqueueResponse:
        """Asks for a picture; of a lantern, unless the params say otherwise."""
        completion = None
        if is_shown:
            completion = pb.CanvasCompletion(placeholder_node_id=node_id)
            if position:
                completion.position.x, completion.position.y = position
        request = pb.EnqueueRequest(
            dedupe_key=key or secrets.token_hex(8),
            kind=kind,
            params=json.dumps({"prompt": "a paper lantern", "size": "64x64", **params}).encode(),
            canvas_id=canvas_id,
            canvas_completion=completion,
            priority=priority,
        )
        return await self._client.call(self._stub.Enqueue, request, self.behalf)

    async def enqueue_all(self, *requests: pb.EnqueueRequest) -> list[pb.EnqueueOutcome]:
        """Asks for many jobs at once."""
        request = pb.BatchEnqueueRequest(requests=requests)
        response = await self._client.call(self._stub.BatchEnqueue, request, self.behalf)
        return list(response.outcomes)

    async def job(self, job_id: str) -> pb.JobSummary:
        """One job of the account."""
        request = pb.GetJobSummaryRequest(job_id=job_id)
        response = await self._client.call(self._stub.GetJobSummary, request, self.behalf)
        return response.job

    async def result(self, job_id: str) -> pb.GetJobResultResponse:
        """What a job of the account made."""
        request = pb.GetJobResultRequest(job_id=job_id)
        return await self._client.call(self._stub.GetJobResult, request, self.behalf)

    async def jobs(self, **request: Any) -> pb.ListJobSummariesResponse:
        """A page of jobs."""
        return await self._client.call(
            self._stub.ListJobSummaries, pb.ListJobSummariesRequest(**request), self.behalf
        )

    async def cancel(self, job_id: str) -> pb.JobSummary:
        """Takes a job back."""
        request = pb.CancelRequest(job_id=job_id)
        response = await self._client.call(self._stub.Cancel, request, self.behalf)
        return response.job

    async def acknowledge(self, *job_ids: str) -> list[pb.JobSummary]:
        """Says that ends were seen; those of the jobs that are over."""
        request = pb.AcknowledgeJobSummariesRequest(job_ids=job_ids)
        response = await self._client.call(self._stub.AcknowledgeJobSummaries, request, self.behalf)
        return list(response.jobs)

    async def overview(self) -> pb.GetQueueOverviewResponse:
        """The counts."""
        return await self._client.call(
            self._stub.GetQueueOverview, pb.GetQueueOverviewRequest(), self.behalf
        )


class Hand:
    """A worker's calls, one by one."""

    def __init__(self, client: Client, worker_id: str) -> None:
        self.worker_id = worker_id
        self._client = client
        self._stub = GenerationServiceStub(client.channel)

    async def claim(
        self,
        limit: int = 1,
        *,
        claim_id: str | None = None,
        wait: float = 0,
        lease: float = 600,
    ) -> list[pb.ClaimedJob]:
        """Claims jobs."""
        request = pb.ClaimRequest(
            worker_id=self.worker_id,
            claim_id=claim_id or secrets.token_hex(8),
            limit=limit,
            lease=_duration(lease),
            wait=_duration(wait),
        )
        response = await self._client.call(self._stub.Claim, request, Behalf(), seconds=wait + 10)
        return list(response.jobs)

    async def renew(self, *leases: pb.ClaimedJob, lease: float = 600) -> list[int]:
        """Renews leases."""
        request = pb.RenewLeasesRequest(
            worker_id=self.worker_id, leases=map(lease_of, leases), lease=_duration(lease)
        )
        response = await self._client.call(self._stub.RenewLeases, request, Behalf())
        return list(response.outcomes)

    async def update_phase(
        self, job: pb.ClaimedJob, phase: Any = pb.JOB_PHASE_PROCESSING, progress: int = 50
    ) -> None:
        """Says a phase."""
        request = pb.UpdatePhaseRequest(
            worker_id=self.worker_id, lease=lease_of(job), phase=phase, progress=progress
        )
        await self._client.call(self._stub.UpdatePhase, request, Behalf())

    async def call(
        self, job: pb.ClaimedJob, number: int = 1, *, request_id: str | None = None
    ) -> tuple[bool, str | None]:
        """Begins a call of a provider, which accepts it if it is given an id.

        Whether it may be made, and what the provider called it before.
        """
        stub = ProviderCallServiceStub(self._client.channel)
        begin = calls_pb.BeginCallRequest(
            worker_id=self.worker_id, lease=lease_of(job), number=number, model="studio"
        )
        begun = await self._client.call(stub.BeginCall, begin, Behalf())
        if request_id is not None:
            report = calls_pb.ReportCallRequest(
                lease=lease_of(job), number=number, request_id=request_id
            )
            await self._client.call(stub.ReportCall, report, Behalf())
        return begun.is_new, begun.request_id if begun.HasField("request_id") else None

    async def complete(self, *jobs: pb.ClaimedJob, outputs: int = 1) -> list[int]:
        """Ends attempts with some outputs each."""
        completions = [
            pb.Completion(lease=lease_of(job), outputs=some_outputs(outputs)) for job in jobs
        ]
        request = pb.CompleteRequest(worker_id=self.worker_id, completions=completions)
        response = await self._client.call(self._stub.Complete, request, Behalf())
        return list(response.outcomes)

    async def fail(self, *jobs: pb.ClaimedJob, error: str = "It broke.") -> list[int]:
        """Ends attempts with an error."""
        failures = [pb.Failure(lease=lease_of(job), error=error) for job in jobs]
        request = pb.FailRequest(worker_id=self.worker_id, failures=failures)
        response = await self._client.call(self._stub.Fail, request, Behalf())
        return list(response.outcomes)


def lease_of(job: pb.ClaimedJob) -> pb.Lease:
    """The lease of an attempt."""
    return pb.Lease(job_id=job.job_id, lease_token=job.lease_token)


def some_outputs(count: int) -> Sequence[pb.Output]:
    """Outputs that nobody has stored."""
    return [
        pb.Output(
            resource_id=f"rs_{number}",
            asset_id=f"as_{number}",
            mime_type="image/png",
            width=200,
            height=100,
        )
        for number in range(1, count + 1)
    ]


def _duration(seconds: float) -> Duration:
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message
