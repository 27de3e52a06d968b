"""Speaks gesso.generation.v1: messages into values and back."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

from gesso.generation.v1 import generation_pb2
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceServicer
from google.protobuf.duration_pb2 import Duration

from servicekit.errors import Failure, Invalid
from servicekit.identity import Context, account_of
from servicekit.pages import page_of, page_size, place_from_token
from servicekit.status import message_from_failure
from servicekit.strictjson import loads
from servicekit.times import timestamp_from_time
from servicekit.watches import News, Watches
from services.generation.claims import Claim, Claims
from services.generation.domain.jobs import (
    ClaimedJob,
    Completion,
    Draft,
    Failing,
    Held,
    Lease,
    Output,
    Phase,
    Placed,
    Position,
    Shown,
    Status,
    Summary,
    Target,
)
from services.generation.domain.requests import Request, drafted
from services.generation.domain.scaling import QueueStats
from services.generation.service import Enqueued, GenerationService
from services.generation.stats import Stats
from services.generation.workers import Workers

MAX_ITEMS = 100
DOMAIN = "generation.gesso"
MAX_RESULT_BYTES = 256 * 1024
MAX_NAME_LENGTH = 200
MIN_LEASE, MAX_LEASE = timedelta(seconds=1), timedelta(hours=1)
MAX_SECONDS = 10**6
MAX_WAIT = timedelta(seconds=30)
DEFAULT_PAGE_SIZE = 20

_STATUSES = {
    Status.PENDING: generation_pb2.JOB_STATUS_PENDING,
    Status.RUNNING: generation_pb2.JOB_STATUS_RUNNING,
    Status.COMPLETED: generation_pb2.JOB_STATUS_COMPLETED,
    Status.FAILED: generation_pb2.JOB_STATUS_FAILED,
    Status.CANCELLED: generation_pb2.JOB_STATUS_CANCELLED,
}
_STATUS_OF_PROTO: dict[int, Status] = {number: status for status, number in _STATUSES.items()}
_PHASES: dict[Phase | None, generation_pb2.JobPhase.ValueType] = {
    None: generation_pb2.JOB_PHASE_UNSPECIFIED,
    Phase.GENERATING: generation_pb2.JOB_PHASE_GENERATING,
    Phase.PROCESSING: generation_pb2.JOB_PHASE_PROCESSING,
}
_PHASE_OF_PROTO: dict[int, Phase | None] = {number: phase for phase, number in _PHASES.items()}
_OUTCOMES = {
    Held.OK: generation_pb2.LEASE_OUTCOME_OK,
    Held.FENCED: generation_pb2.LEASE_OUTCOME_FENCED,
    Held.CANCELLED: generation_pb2.LEASE_OUTCOME_CANCELLED,
}


class Orders(Protocol):
    """Who takes what is asked for."""

    async def enqueue(self, account_id: str, draft: Draft) -> Enqueued:
        """Takes a job, once for each dedupe key. Raises what it is refused for."""

    async def enqueue_all(
        self, account_id: str, drafts: Sequence[Draft]
    ) -> list[Enqueued | Failure]:
        """Takes jobs; what became of each, in order."""


class GenerationRpc(GenerationServiceServicer):
    """The queue as gRPC."""

    def __init__(
        self,
        orders: Orders,
        service: GenerationService,
        claims: Claims,
        watches: Watches[Summary],
        workers: Workers,
        stats: Stats,
    ) -> None:
        self._orders = orders
        self._service = service
        self._claims = claims
        self._watches = watches
        self._workers = workers
        self._stats = stats

    async def Enqueue(
        self, request: generation_pb2.EnqueueRequest, context: Context
    ) -> generation_pb2.EnqueueResponse:
        """See generation.proto."""
        draft = draft_from_proto(request)
        enqueued = await self._orders.enqueue(account_of(context), draft)
        return proto_from_enqueued(enqueued)

    async def BatchEnqueue(
        self, request: generation_pb2.BatchEnqueueRequest, context: Context
    ) -> generation_pb2.BatchEnqueueResponse:
        """See generation.proto."""
        _check_number(request.requests, "requests")
        asked = [_draft_or_failure(each) for each in request.requests]
        drafts = [each for each in asked if isinstance(each, Draft)]
        stored = iter(await self._orders.enqueue_all(account_of(context), drafts) if drafts else ())
        return generation_pb2.BatchEnqueueResponse(
            outcomes=[
                proto_from_outcome(next(stored) if isinstance(each, Draft) else each)
                for each in asked
            ]
        )

    async def Claim(
        self, request: generation_pb2.ClaimRequest, context: Context
    ) -> generation_pb2.ClaimResponse:
        """See generation.proto."""
        if not 1 <= request.limit <= MAX_ITEMS:
            raise Invalid(f"A claim takes 1 to {MAX_ITEMS} jobs.", path="limit")
        wait = _length(request.wait)
        if not timedelta() <= wait <= MAX_WAIT:
            raise Invalid("A claim waits 0 to 30 seconds.", path="wait")
        claim = Claim(
            worker_id=_name(request.worker_id, "workerId"),
            claim_id=_name(request.claim_id, "claimId"),
            limit=request.limit,
            lease=lease_length(request.lease),
            wait=wait,
        )
        jobs = await self._claims.jobs(claim)
        return generation_pb2.ClaimResponse(jobs=map(proto_from_claimed_job, jobs))

    async def RenewLeases(
        self, request: generation_pb2.RenewLeasesRequest, context: Context
    ) -> generation_pb2.RenewLeasesResponse:
        """See generation.proto."""
        length = lease_length(request.lease)
        _check_number(request.leases, "leases")
        held = await self._service.renew(
            [(_lease(request.worker_id, lease), length) for lease in request.leases]
        )
        if Held.OK in held:
            self._workers.heard(request.worker_id)
        return generation_pb2.RenewLeasesResponse(outcomes=[_OUTCOMES[each] for each in held])

    async def UpdatePhase(
        self, request: generation_pb2.UpdatePhaseRequest, context: Context
    ) -> generation_pb2.UpdatePhaseResponse:
        """See generation.proto."""
        phase = _PHASE_OF_PROTO.get(request.phase)
        if phase is None:
            raise Invalid("The phase is not known.", path="phase")
        if not 0 <= request.progress <= 100:
            raise Invalid("Progress is 0 to 100.", path="progress")
        lease = _lease(request.worker_id, request.lease)
        await self._service.update_phase(lease, phase, request.progress)
        return generation_pb2.UpdatePhaseResponse()

    async def Complete(
        self, request: generation_pb2.CompleteRequest, context: Context
    ) -> generation_pb2.CompleteResponse:
        """See generation.proto."""
        _check_number(request.completions, "completions")
        held = await self._service.complete(
            [_completion(request.worker_id, message) for message in request.completions]
        )
        return generation_pb2.CompleteResponse(outcomes=[_OUTCOMES[each] for each in held])

    async def Fail(
        self, request: generation_pb2.FailRequest, context: Context
    ) -> generation_pb2.FailResponse:
        """See generation.proto."""
        _check_number(request.failures, "failures")
        held = await self._service.fail(
            [
                Failing(_lease(request.worker_id, message.lease), message.error)
                for message in request.failures
            ]
        )
        return generation_pb2.FailResponse(outcomes=[_OUTCOMES[each] for each in held])

    async def Cancel(
        self, request: generation_pb2.CancelRequest, context: Context
    ) -> generation_pb2.CancelResponse:
        """See generation.proto."""
        summary = await self._service.cancel(account_of(context), request.job_id)
        return generation_pb2.CancelResponse(job=proto_from_summary(summary))

    async def GetJobSummary(
        self, request: generation_pb2.GetJobSummaryRequest, context: Context
    ) -> generation_pb2.GetJobSummaryResponse:
        """See generation.proto."""
        account_id = account_of(context)
        summary = await self._service.summary(account_id, request.job_id)
        (placed,) = await self._service.placed(account_id, [summary])
        return generation_pb2.GetJobSummaryResponse(job=proto_from_placed(placed))

    async def GetJobResult(
        self, request: generation_pb2.GetJobResultRequest, context: Context
    ) -> generation_pb2.GetJobResultResponse:
        """See generation.proto."""
        result = await self._service.result(account_of(context), request.job_id)
        return generation_pb2.GetJobResultResponse(
            status=_STATUSES[result.status],
            error=result.error,
            outputs=map(proto_from_output, result.outputs),
            warning=result.warning,
        )

    async def ListJobSummaries(
        self, request: generation_pb2.ListJobSummariesRequest, context: Context
    ) -> generation_pb2.ListJobSummariesResponse:
        """See generation.proto."""
        size = page_size(request.page_size, default=DEFAULT_PAGE_SIZE)
        (before,) = place_from_token(request.page_token)
        wanted = Shown(
            statuses_from_proto(request.statuses) or list(Status),
            with_acknowledged=request.include_acknowledged,
        )
        account_id = account_of(context)
        found = await self._service.page(account_id, wanted, before, size + 1)
        shown, next_page_token = page_of(found, size, lambda summary: (summary.key,))
        placed = await self._service.placed(account_id, shown)
        return generation_pb2.ListJobSummariesResponse(
            jobs=map(proto_from_placed, placed), next_page_token=next_page_token
        )

    async def AcknowledgeJobSummaries(
        self, request: generation_pb2.AcknowledgeJobSummariesRequest, context: Context
    ) -> generation_pb2.AcknowledgeJobSummariesResponse:
        """See generation.proto."""
        _check_number(request.job_ids, "jobIds")
        jobs = await self._service.acknowledge(account_of(context), request.job_ids)
        return generation_pb2.AcknowledgeJobSummariesResponse(jobs=map(proto_from_summary, jobs))

    async def GetQueueOverview(
        self, request: generation_pb2.GetQueueOverviewRequest, context: Context
    ) -> generation_pb2.GetQueueOverviewResponse:
        """See generation.proto."""
        overview = await self._service.overview(account_of(context))
        return generation_pb2.GetQueueOverviewResponse(
            pending=overview.pending,
            running=overview.running,
            unacknowledged=overview.unacknowledged,
            update_time=timestamp_from_time(overview.updated_at),
        )

    async def WatchJobs(
        self, request_iterator: AsyncIterator[generation_pb2.WatchJobsRequest], context: Context
    ) -> AsyncIterator[generation_pb2.WatchJobsResponse]:
        """See generation.proto."""
        await context.send_initial_metadata(())
        async for news in self._watches.told(request_iterator):
            yield generation_pb2.WatchJobsResponse(changes=map(proto_from_news, news))

    async def GetQueueStats(
        self, request: generation_pb2.GetQueueStatsRequest, context: Context
    ) -> generation_pb2.GetQueueStatsResponse:
        """See generation.proto."""
        return proto_from_queue_stats(await self._stats.recent())


def draft_from_proto(request: generation_pb2.EnqueueRequest) -> Draft:
    """The job that is asked for. Raises `WrongRequest`, saying what is wrong where."""
    completion = request.canvas_completion
    target = None
    if request.HasField("canvas_completion"):
        target = Target(
            node_id=completion.placeholder_node_id
            if completion.HasField("placeholder_node_id")
            else None,
            position=Position(completion.position.x, completion.position.y),
        )
    return drafted(
        Request(
            dedupe_key=request.dedupe_key,
            kind=request.kind,
            params=loads(request.params),
            canvas_id=request.canvas_id,
            target=target,
            priority=request.priority,
        )
    )


def proto_from_enqueued(enqueued: Enqueued) -> generation_pb2.EnqueueResponse:
    """A job that was asked for, as a message."""
    return generation_pb2.EnqueueResponse(
        job=proto_from_summary(enqueued.summary), replayed=enqueued.is_repeat
    )


def proto_from_outcome(outcome: Enqueued | Failure) -> generation_pb2.EnqueueOutcome:
    """What became of one job of a list, as a message."""
    if isinstance(outcome, Failure):
        status = message_from_failure(outcome, domain=DOMAIN)
        return generation_pb2.EnqueueOutcome(status=status.SerializeToString())
    return generation_pb2.EnqueueOutcome(enqueued=proto_from_enqueued(outcome))


def statuses_from_proto(numbers: Sequence[int]) -> list[Status]:
    """The statuses that a list asks for, each once. Raises `Invalid` for one not known."""
    unknown = [number for number in numbers if number not in _STATUS_OF_PROTO]
    if unknown:
        raise Invalid("The status is not known.", path="statuses")
    return list({_STATUS_OF_PROTO[number]: None for number in numbers})


def lease_length(message: Duration) -> timedelta:
    """How long a lease shall hold. Raises `Invalid` outside 1 second to 1 hour."""
    length = _length(message)
    if not MIN_LEASE <= length <= MAX_LEASE:
        raise Invalid("A lease holds 1 second to 1 hour.", path="lease")
    return length


def proto_from_summary(summary: Summary) -> generation_pb2.JobSummary:
    """What its owner may see of a job, as a message."""
    return generation_pb2.JobSummary(
        job_id=summary.job_id,
        kind=summary.kind,
        source=summary.source,
        label=summary.label,
        status=_STATUSES[summary.status],
        phase=_PHASES[summary.phase],
        progress=summary.progress,
        error=summary.error,
        warning=summary.warning,
        price_micros=summary.price_micros,
        refund_entry_id=summary.refund_entry_id,
        canvas_id=summary.canvas_id,
        node_id=summary.node_id,
        create_time=timestamp_from_time(summary.created_at),
        start_time=timestamp_from_time(summary.started_at),
        end_time=timestamp_from_time(summary.ended_at),
        update_time=timestamp_from_time(summary.updated_at),
        acknowledge_time=timestamp_from_time(summary.acknowledged_at),
    )


def proto_from_placed(placed: Placed) -> generation_pb2.JobSummary:
    """A job with its place in the queue, as a message."""
    job = proto_from_summary(placed.summary)
    if placed.position is not None:
        job.queue_position = placed.position
    if placed.eta is not None:
        job.eta.FromTimedelta(placed.eta)
    return job


def proto_from_news(news: News[Summary]) -> generation_pb2.JobChanges:
    """What changed of the jobs of an account, as a message."""
    return generation_pb2.JobChanges(
        account_id=news.account_id,
        reader=news.reader,
        jobs=map(proto_from_summary, news.items),
        cursor=news.cursor,
    )


def proto_from_queue_stats(stats: QueueStats) -> generation_pb2.GetQueueStatsResponse:
    """The numbers of the whole queue, as a message."""
    message = generation_pb2.GetQueueStatsResponse(
        claimable_pending=stats.claimable_pending,
        blocked_pending=stats.blocked_pending,
        delayed_pending=stats.delayed_pending,
        waiting=stats.waiting,
        running_active=stats.running_active,
        expired_running=stats.expired_running,
        delivering=stats.delivering,
        workers=stats.workers,
    )
    if stats.oldest_wait is not None:
        message.oldest_wait.FromTimedelta(stats.oldest_wait)
    return message


def proto_from_claimed_job(job: ClaimedJob) -> generation_pb2.ClaimedJob:
    """An attempt as a message for its worker."""
    return generation_pb2.ClaimedJob(
        job_id=job.job_id,
        lease_token=job.lease_token,
        account_id=job.account_id,
        kind=job.kind,
        params=job.params.encode(),
        canvas_id=job.canvas_id,
        attempt=job.attempt,
    )


def proto_from_output(output: Output) -> generation_pb2.Output:
    """One thing that was made, as a message."""
    return generation_pb2.Output(
        resource_id=output.resource_id,
        asset_id=output.asset_id,
        mime_type=output.mime_type,
        width=output.width,
        height=output.height,
    )


def _draft_or_failure(request: generation_pb2.EnqueueRequest) -> Draft | Failure:
    try:
        return draft_from_proto(request)
    except Failure as failure:
        return failure


def _length(message: Duration) -> timedelta:
    # Far beyond what is accepted, timedelta ends before the message does.
    seconds = min(max(message.seconds, -MAX_SECONDS), MAX_SECONDS)
    return timedelta(seconds=seconds, microseconds=message.nanos // 1000)


def _lease(worker_id: str, message: generation_pb2.Lease) -> Lease:
    return Lease(worker_id, message.job_id, message.lease_token)


def _completion(worker_id: str, message: generation_pb2.Completion) -> Completion:
    if message.ByteSize() > MAX_RESULT_BYTES:
        raise Invalid(f"A result has at most {MAX_RESULT_BYTES // 1024} KiB.", path="completions")
    return Completion(
        lease=_lease(worker_id, message.lease),
        outputs=tuple(
            Output(
                resource_id=output.resource_id,
                asset_id=output.asset_id,
                mime_type=output.mime_type,
                width=output.width,
                height=output.height,
            )
            for output in message.outputs
        ),
        warning=message.warning if message.HasField("warning") else None,
    )


def _name(text: str, path: str) -> str:
    if not 1 <= len(text) <= MAX_NAME_LENGTH:
        raise Invalid(f"{path} has 1 to {MAX_NAME_LENGTH} characters.", path=path)
    return text


def _check_number(items: Sequence[Any], path: str) -> None:
    if not 1 <= len(items) <= MAX_ITEMS:
        raise Invalid(f"A list has 1 to {MAX_ITEMS} items.", path=path)
