"""Jobs from enqueue to the canvas, with a provider that draws nothing."""

import asyncio
import base64
import secrets
import time
from collections.abc import Sequence

from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from gesso.generation.v1 import generation_pb2 as pb
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import WalletServiceStub

from bench.suite import Bench, an_account
from bench.timing import Timing, summary
from providers.image import Accepted, ImageRequest
from servicekit.client import Client
from servicekit.identity import Behalf
from servicekit.objects import ObjectSettings
from services.generation.settings import WorkerSettings
from services.generation.worker import running

ACCOUNTS = 25
EACH = 16
CANVAS = "bench"
LOOK_SECONDS = 0.1

# The smallest picture there is: one transparent pixel.
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class NoPicture:
    """A model that answers at once. Of the bench only: no setting leads to it."""

    async def generate(
        self,
        request: ImageRequest,  # noqa: ARG002 - it draws nothing
        accepted: Accepted,  # noqa: ARG002 - nor is anything to be asked after
    ) -> bytes:
        """One pixel."""
        return _PIXEL

    async def resume(self, request: ImageRequest, request_id: str) -> bytes:
        """Never: nothing was accepted."""
        raise NotImplementedError(f"{request.request_id} was never called {request_id}")

    async def cancel(self, request_id: str) -> bool:
        """Never: nothing was accepted."""
        raise NotImplementedError(f"nothing was called {request_id}")


async def end_to_end(bench: Bench) -> Timing:
    """From enqueueing all jobs of all accounts until each is completed on its canvas.

    The worker runs here, everything else in processes of its own.
    """
    settings = WorkerSettings(
        internal_tokens=bench.token,
        log_level="warning",
        objects=ObjectSettings(objects_url=bench.objects_url),
        canvas_address=bench.addresses["canvas"],
        generation_address=bench.addresses["generation"],
        concurrency=50,
    )
    async with (
        bench.client("generation") as generation,
        bench.client("canvas") as canvas,
        running(settings, providers={"studio": NoPicture()}),
    ):
        accounts = [an_account() for _ in range(ACCOUNTS)]
        for account in accounts:
            await _prepare(account, canvas, generation)
        began = time.perf_counter()
        lasts = await asyncio.gather(*(_orders(account, generation) for account in accounts))
        return summary([last for each in lasts for last in each], time.perf_counter() - began)


async def _prepare(account: Behalf, canvas: Client, generation: Client) -> None:
    creation = canvas_pb2.CreateCanvas(canvas=b'{"title":"Bench"}')
    change = canvas_pb2.ApplyOperationsRequest(
        canvas_id=CANVAS,
        mutation_id="create",
        operations=[canvas_pb2.Operation(create_canvas=creation)],
    )
    await canvas.call(CanvasServiceStub(canvas.channel).ApplyOperations, change, account)
    grant = wallet_pb2.GrantRequest(amount_micros=10**9, reference=f"bench:{account.account_id}")
    await generation.call(WalletServiceStub(generation.channel).Grant, grant, account)


async def _orders(account: Behalf, generation: Client) -> Sequence[float]:
    """How long each job of an account took, by the database's clock."""
    stub = GenerationServiceStub(generation.channel)
    for _ in range(EACH):
        order = pb.EnqueueRequest(
            dedupe_key=secrets.token_hex(8),
            kind="editor_image_generation",
            params=b'{"prompt":"a lantern"}',
            canvas_id=CANVAS,
            canvas_completion=pb.CanvasCompletion(position=pb.Position(x=0, y=0)),
        )
        await generation.call(stub.Enqueue, order, account)
    while True:
        counts = await generation.call(stub.GetQueueOverview, pb.GetQueueOverviewRequest(), account)
        if counts.pending + counts.running == 0:
            break
        await asyncio.sleep(LOOK_SECONDS)
    page = await generation.call(
        stub.ListJobSummaries, pb.ListJobSummariesRequest(page_size=EACH), account
    )
    assert all(job.status == pb.JOB_STATUS_COMPLETED for job in page.jobs)
    return [
        (job.end_time.ToDatetime() - job.create_time.ToDatetime()).total_seconds()
        for job in page.jobs
    ]
