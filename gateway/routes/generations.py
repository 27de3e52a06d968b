"""Pictures on order: enqueue, follow the jobs, and what they cost."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from gesso.generation.v1 import generation_pb2 as pb
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import WalletServiceStub
from msgspec import Meta
from starlette.requests import HTTPConnection

from gateway.credits import credits_from_micros
from gateway.endpoints import Answer, Call, Input, NoQuery, Output, PageQuery, endpoint
from servicekit.client import CALL_SECONDS, Client
from servicekit.errors import Invalid
from servicekit.ids import new_id
from servicekit.times import micros_from_time, rfc3339, time_from_timestamp

_STATUSES = {
    "queued": pb.JOB_STATUS_PENDING,
    "running": pb.JOB_STATUS_RUNNING,
    "completed": pb.JOB_STATUS_COMPLETED,
    "failed": pb.JOB_STATUS_FAILED,
    "cancelled": pb.JOB_STATUS_CANCELLED,
}
_ENDS = {pb.JOB_STATUS_COMPLETED, pb.JOB_STATUS_FAILED, pb.JOB_STATUS_CANCELLED}
_STATUS_NAMES = {status: name for name, status in _STATUSES.items()}
_PHASE_NAMES = {
    pb.JOB_PHASE_UNSPECIFIED: "generating",
    pb.JOB_PHASE_GENERATING: "generating",
    pb.JOB_PHASE_PROCESSING: "processing",
}
_PHASE_LABELS = {
    "zh": {"generating": "正在生成", "processing": "正在处理"},
    "en": {"generating": "Generating", "processing": "Processing"},
}


class Position(Input, frozen=True):
    """World coordinates."""

    x: float
    y: float


class CanvasCompletion(Input, frozen=True):
    """Where the result goes: to the node that waits for it, or to a new one."""

    placeholder_node_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    position: Position | None = None


class GenerationRequest(Input, frozen=True):
    """What is wanted. `params` are those of the kind."""

    kind: str
    params: dict[str, Any]
    canvas_completion: CanvasCompletion = CanvasCompletion()


class OperationView(Output, frozen=True):
    """A job as the window that waits for it needs it."""

    operation_id: str
    status: str
    phase_label: str
    phase_detail: str
    progress: int
    updated_at_micros: int
    error: str | None = None
    warning: str | None = None


class Operation(Output, frozen=True):
    """A job that was enqueued, or that is over already."""

    operation: OperationView


class JobView(Output, frozen=True):
    """A job as lists show it."""

    job_id: str
    kind: str
    source: str
    label: str
    status: str
    phase: str
    phase_label: str
    phase_detail: str
    progress: int
    price_credits: float
    canvas_id: str
    created_at_micros: int
    updated_at_micros: int
    node_id: str | None = None
    error: str | None = None
    warning: str | None = None
    refund_ledger_id: str | None = None
    started_at_micros: int | None = None
    completed_at_micros: int | None = None
    notification_acknowledged_at: str | None = None
    queue_position: int | None = None
    eta_seconds: int | None = None


class Jobs(Output, frozen=True):
    """A page of jobs, newest first."""

    jobs: list[JobView]
    next_page_token: str | None = None


class JobsQuery(Input, frozen=True):
    """Which jobs: `statuses` by commas out of queued, running, completed, failed and cancelled.

    Those that are over and acknowledged only if asked for.
    """

    limit: Annotated[int, Meta(ge=1, le=200)] = 20
    page_token: str = ""
    statuses: str = ""
    include_acknowledged_terminal: bool = False


class Acknowledgement(Input, frozen=True):
    """The jobs whose ends were shown."""

    job_ids: Annotated[list[str], Meta(min_length=1, max_length=100)]


class Acknowledged(Output, frozen=True):
    """Those of the jobs that are over, as they are now."""

    jobs: list[JobView]


class CancelledJob(Output, frozen=True):
    """A job that was taken back."""

    job: JobView


class Overview(Output, frozen=True):
    """How many jobs wait and run, and how many are over unseen (counted to 1,000)."""

    pending: int
    running: int
    unacknowledged: int
    updated_at_micros: int | None = None


class EntryView(Output, frozen=True):
    """A line of the ledger."""

    id: str
    kind: str
    delta_credits: float
    balance_after_credits: float
    reference: str
    at: str


class Wallet(Output, frozen=True):
    """The balance, and a page of the ledger, newest first."""

    balance_credits: float
    entries: list[EntryView]
    next_page_token: str | None = None


class PriceView(Output, frozen=True):
    """What one output costs."""

    kind: str
    model: str
    credits: float


class Prices(Output, frozen=True):
    """The price list."""

    prices: list[PriceView]


class GenerationRoutes:
    """Jobs and credits of who is signed in."""

    def __init__(
        self, generation: Client, canvas: Client, *, inline_seconds: float | None = None
    ) -> None:
        """`inline_seconds`: how long a job may take that is carried out while who asks waits."""
        self._inline_seconds = inline_seconds
        self._canvas = canvas
        self._canvases = CanvasServiceStub(canvas.channel)
        self._generation = generation
        self._stub = GenerationServiceStub(generation.channel)
        self._wallet = WalletServiceStub(generation.channel)

    @endpoint(
        "POST",
        "/api/canvas-projects/{canvas_id}/generations",
        tag="generations",
        body=GenerationRequest,
        answers={202: Operation, 200: Operation},
        refusals=("not_found", "insufficient_balance", "backlog_full", "idempotency_key_reused"),
        idempotent_by_key=True,
    )
    async def enqueue(self, call: Call[GenerationRequest, NoQuery]) -> Answer:
        """Order something: it is charged now, and given back if it fails.

        The result goes to the canvas, which has to be there. With the same `Idempotency-Key` the
        same job is answered, and nothing is charged again. Where jobs are carried out at once
        (inline) the answer is 200, with `completed` or `failed`, and comes when the job is over.
        """
        asked = call.body
        await self._canvas.call(
            self._canvases.GetSyncStatus,
            canvas_pb2.GetSyncStatusRequest(canvas_id=call.path["canvas_id"]),
            call.behalf,
        )
        completion = pb.CanvasCompletion(
            placeholder_node_id=asked.canvas_completion.placeholder_node_id
        )
        if asked.canvas_completion.position is not None:
            place = asked.canvas_completion.position
            completion.position.CopyFrom(pb.Position(x=place.x, y=place.y))
        request = pb.EnqueueRequest(
            dedupe_key=call.idempotency_key or new_id("once"),
            kind=asked.kind,
            params=msgspec.json.encode(asked.params),
            canvas_id=call.path["canvas_id"],
            canvas_completion=completion,
        )
        seconds = CALL_SECONDS + (self._inline_seconds or 0)
        enqueued = await self._generation.call(
            self._stub.Enqueue, request, call.behalf, seconds=seconds
        )
        headers = {"Idempotent-Replayed": "true"} if enqueued.replayed else {}
        view = _view_of_operation(enqueued.job, language_of(call.request))
        is_over = self._inline_seconds is not None and enqueued.job.status in _ENDS
        return Answer(Operation(view), 200 if is_over else 202, headers)

    @endpoint(
        "GET",
        "/api/runtime/external-generation/queue-overview",
        tag="generations",
        answers={200: Overview},
    )
    async def overview(self, call: Call[None, NoQuery]) -> Answer:
        """Count the jobs that wait, run, and are over unseen."""
        counts = await self._generation.call(
            self._stub.GetQueueOverview, pb.GetQueueOverviewRequest(), call.behalf
        )
        return Answer(
            Overview(
                pending=counts.pending,
                running=counts.running,
                unacknowledged=counts.unacknowledged,
                updated_at_micros=_micros(counts, "update_time"),
            )
        )

    @endpoint(
        "GET",
        "/api/runtime/external-generation/jobs",
        tag="generations",
        query=JobsQuery,
        answers={200: Jobs},
    )
    async def jobs(self, call: Call[None, JobsQuery]) -> Answer:
        """List jobs, newest first."""
        request = pb.ListJobSummariesRequest(
            page_size=call.query.limit,
            page_token=call.query.page_token,
            statuses=_statuses(call.query.statuses),
            include_acknowledged=call.query.include_acknowledged_terminal,
        )
        page = await self._generation.call(self._stub.ListJobSummaries, request, call.behalf)
        return Answer(
            Jobs(
                jobs=[view_of_job(job, language_of(call.request)) for job in page.jobs],
                next_page_token=page.next_page_token or None,
            )
        )

    @endpoint(
        "GET",
        "/api/runtime/external-generation/jobs/{job_id}",
        tag="generations",
        answers={200: OperationView},
        refusals=("not_found",),
    )
    async def job(self, call: Call[None, NoQuery]) -> Answer:
        """Say where a job is."""
        request = pb.GetJobSummaryRequest(job_id=call.path["job_id"])
        found = await self._generation.call(self._stub.GetJobSummary, request, call.behalf)
        return Answer(_view_of_operation(found.job, language_of(call.request)))

    @endpoint(
        "POST",
        "/api/runtime/external-generation/jobs/acknowledge",
        tag="generations",
        body=Acknowledgement,
        answers={200: Acknowledged},
    )
    async def acknowledge(self, call: Call[Acknowledgement, NoQuery]) -> Answer:
        """Say that the ends of jobs were shown, so that no window announces them again."""
        request = pb.AcknowledgeJobSummariesRequest(job_ids=call.body.job_ids)
        noted = await self._generation.call(
            self._stub.AcknowledgeJobSummaries, request, call.behalf
        )
        language = language_of(call.request)
        return Answer(Acknowledged([view_of_job(job, language) for job in noted.jobs]))

    @endpoint(
        "POST",
        "/api/runtime/external-generation/jobs/{job_id}/cancel",
        tag="generations",
        answers={200: CancelledJob},
        refusals=("not_found", "job_finishing"),
    )
    async def cancel(self, call: Call[None, NoQuery]) -> Answer:
        """Take a job back: it is given back what it cost, whether it waits or runs."""
        request = pb.CancelRequest(job_id=call.path["job_id"])
        cancelled = await self._generation.call(self._stub.Cancel, request, call.behalf)
        return Answer(CancelledJob(view_of_job(cancelled.job, language_of(call.request))))

    @endpoint("GET", "/api/wallet", tag="wallet", query=PageQuery, answers={200: Wallet})
    async def wallet(self, call: Call[None, PageQuery]) -> Answer:
        """Say how many credits there are, and where they came from and went."""
        request = wallet_pb2.GetWalletRequest(
            page_size=call.query.page_size, page_token=call.query.page_token
        )
        found = await self._generation.call(self._wallet.GetWallet, request, call.behalf)
        return Answer(
            Wallet(
                balance_credits=credits_from_micros(found.balance_micros),
                entries=[_view_of_entry(entry) for entry in found.entries],
                next_page_token=found.next_page_token or None,
            )
        )

    @endpoint("GET", "/api/wallet/prices", tag="wallet", answers={200: Prices})
    async def prices(self, call: Call[None, NoQuery]) -> Answer:
        """List what each kind of output costs."""
        found = await self._generation.call(
            self._wallet.ListPrices, wallet_pb2.ListPricesRequest(), call.behalf
        )
        return Answer(
            Prices(
                prices=[
                    PriceView(
                        kind=price.kind,
                        model=price.model,
                        credits=credits_from_micros(price.unit_micros),
                    )
                    for price in found.prices
                ]
            )
        )


def _statuses(names: str) -> Iterable[pb.JobStatus.ValueType]:
    for name in filter(None, names.split(",")):
        if name not in _STATUSES:
            raise Invalid(f"A status is one of {', '.join(_STATUSES)}.", path="statuses")
        yield _STATUSES[name]


def language_of(connection: HTTPConnection) -> str:
    """The language that a request or a handshake asks for, among those that we speak."""
    return "zh" if connection.headers.get("accept-language", "").startswith("zh") else "en"


def _status_name(job: pb.JobSummary) -> str:
    # One that a newer service has and this gateway does not know yet is not over for it.
    return _STATUS_NAMES.get(job.status, "running")


def _phase_name(job: pb.JobSummary) -> str:
    return _PHASE_NAMES.get(job.phase, "generating")


def _phase_label(job: pb.JobSummary, language: str) -> str:
    if job.status != pb.JOB_STATUS_RUNNING:
        return ""
    return _PHASE_LABELS[language][_phase_name(job)]


def _view_of_operation(job: pb.JobSummary, language: str) -> OperationView:
    return OperationView(
        operation_id=job.job_id,
        status=_status_name(job),
        phase_label=_phase_label(job, language),
        phase_detail=job.phase_detail,
        progress=job.progress,
        updated_at_micros=micros_from_time(time_from_timestamp(job.update_time)),
        error=job.error if job.HasField("error") else None,
        warning=job.warning if job.HasField("warning") else None,
    )


def view_of_job(job: pb.JobSummary, language: str) -> JobView:
    """A job as lists show it."""
    return JobView(
        job_id=job.job_id,
        kind=job.kind,
        source=job.source,
        label=job.label,
        status=_status_name(job),
        phase=_phase_name(job),
        phase_label=_phase_label(job, language),
        phase_detail=job.phase_detail,
        progress=job.progress,
        price_credits=credits_from_micros(job.price_micros),
        canvas_id=job.canvas_id,
        created_at_micros=micros_from_time(time_from_timestamp(job.create_time)),
        updated_at_micros=micros_from_time(time_from_timestamp(job.update_time)),
        node_id=job.node_id if job.HasField("node_id") else None,
        error=job.error if job.HasField("error") else None,
        warning=job.warning if job.HasField("warning") else None,
        refund_ledger_id=job.refund_entry_id if job.HasField("refund_entry_id") else None,
        started_at_micros=_micros(job, "start_time"),
        completed_at_micros=_micros(job, "end_time"),
        notification_acknowledged_at=rfc3339(time_from_timestamp(job.acknowledge_time))
        if job.HasField("acknowledge_time")
        else None,
        queue_position=job.queue_position if job.HasField("queue_position") else None,
        eta_seconds=job.eta.seconds + 1 if job.HasField("eta") else None,
    )


def _view_of_entry(entry: wallet_pb2.Entry) -> EntryView:
    return EntryView(
        id=entry.entry_id,
        kind=entry.kind,
        delta_credits=credits_from_micros(entry.delta_micros),
        balance_after_credits=credits_from_micros(entry.balance_after_micros),
        reference=entry.reference,
        at=rfc3339(time_from_timestamp(entry.create_time)),
    )


def _micros(message: Any, field: str) -> int | None:
    if not message.HasField(field):
        return None
    return micros_from_time(time_from_timestamp(getattr(message, field)))
