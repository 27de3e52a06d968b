"""The queue as a worker sees it: claims, signs of life, and how attempts ended."""

from collections.abc import Sequence
from datetime import timedelta

from gesso.generation.v1 import generation_pb2
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from google.protobuf.duration_pb2 import Duration

from servicekit.client import CALL_SECONDS, Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from services.generation.domain.failures import LeaseFenced
from services.generation.domain.jobs import ClaimedJob, Held, Output, Phase

_PHASES = {
    Phase.GENERATING: generation_pb2.JOB_PHASE_GENERATING,
    Phase.PROCESSING: generation_pb2.JOB_PHASE_PROCESSING,
}
_HELD = {
    generation_pb2.LEASE_OUTCOME_OK: Held.OK,
    generation_pb2.LEASE_OUTCOME_CANCELLED: Held.CANCELLED,
}


class Queue:
    """The queue service, asked by one worker."""

    def __init__(self, client: Client, worker_id: str, lease: timedelta) -> None:
        self._client = client
        self._stub = GenerationServiceStub(client.channel)
        self._worker_id = worker_id
        self._lease = lease

    async def claim(self, claim_id: str, limit: int, wait: timedelta) -> list[ClaimedJob]:
        """Up to `limit` jobs; the same in a repeat of the claim id."""
        request = generation_pb2.ClaimRequest(
            worker_id=self._worker_id,
            claim_id=claim_id,
            limit=limit,
            lease=_duration(self._lease),
            wait=_duration(wait),
        )
        response = await self._client.call(
            self._stub.Claim, request, Behalf(), seconds=wait.total_seconds() + CALL_SECONDS
        )
        return [
            ClaimedJob(
                job_id=job.job_id,
                lease_token=job.lease_token,
                account_id=job.account_id,
                kind=job.kind,
                params=job.params.decode(),
                canvas_id=job.canvas_id,
                attempt=job.attempt,
            )
            for job in response.jobs
        ]

    async def renew(self, jobs: Sequence[ClaimedJob], *, seconds: float) -> list[Held]:
        """Extends the leases of jobs; which of them held. Gives up after `seconds`."""
        request = generation_pb2.RenewLeasesRequest(
            worker_id=self._worker_id,
            leases=map(lease_of, jobs),
            lease=_duration(self._lease),
        )
        response = await self._client.call(
            self._stub.RenewLeases, request, Behalf(), seconds=seconds
        )
        return [_HELD.get(outcome, Held.FENCED) for outcome in response.outcomes]

    async def update_phase(self, job: ClaimedJob, phase: Phase, progress: int) -> None:
        """Says what the attempt does. Raises `LeaseFenced`."""
        request = generation_pb2.UpdatePhaseRequest(
            worker_id=self._worker_id,
            lease=lease_of(job),
            phase=_PHASES[phase],
            progress=progress,
        )
        try:
            await self._client.call(self._stub.UpdatePhase, request, Behalf())
        except Failure as failure:
            if failure.machine_word == LeaseFenced.reason:
                raise LeaseFenced from None
            raise

    async def complete(self, job: ClaimedJob, outputs: Sequence[Output]) -> None:
        """Ends the attempt with a result. Raises `LeaseFenced`."""
        completion = generation_pb2.Completion(
            lease=lease_of(job),
            outputs=[
                generation_pb2.Output(
                    resource_id=output.resource_id,
                    asset_id=output.asset_id,
                    mime_type=output.mime_type,
                    width=output.width,
                    height=output.height,
                )
                for output in outputs
            ],
        )
        request = generation_pb2.CompleteRequest(
            worker_id=self._worker_id, completions=[completion]
        )
        response = await self._client.call(self._stub.Complete, request, Behalf())
        _check(response.outcomes)

    async def fail(self, job: ClaimedJob, error: str) -> None:
        """Ends the attempt with an error. Raises `LeaseFenced`."""
        failure = generation_pb2.Failure(lease=lease_of(job), error=error)
        request = generation_pb2.FailRequest(worker_id=self._worker_id, failures=[failure])
        response = await self._client.call(self._stub.Fail, request, Behalf())
        _check(response.outcomes)


def lease_of(job: ClaimedJob) -> generation_pb2.Lease:
    """The lease of an attempt, as a message."""
    return generation_pb2.Lease(job_id=job.job_id, lease_token=job.lease_token)


def _duration(length: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(length)
    return message


def _check(outcomes: Sequence[int]) -> None:
    if list(outcomes) != [generation_pb2.LEASE_OUTCOME_OK]:
        raise LeaseFenced
