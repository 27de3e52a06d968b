"""Which calls of providers are made for jobs, told before and after (GN30)."""

from typing import Protocol

from gesso.generation.v1 import provider_calls_pb2 as pb
from gesso.generation.v1.provider_calls_pb2_grpc import ProviderCallServiceStub

from servicekit.client import Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from services.generation.domain.calls import MAX_DETAIL_LENGTH, Begun, Outcome
from services.generation.domain.failures import LeaseFenced
from services.generation.domain.jobs import ClaimedJob
from services.generation.queue import lease_of

_OUTCOMES = {
    Outcome.SUCCEEDED: pb.PROVIDER_OUTCOME_SUCCEEDED,
    Outcome.FAILED: pb.PROVIDER_OUTCOME_FAILED,
    Outcome.CANCELLED: pb.PROVIDER_OUTCOME_CANCELLED,
}


class Journal(Protocol):
    """Who remembers calls."""

    async def begin(self, job: ClaimedJob, number: int, model: str) -> Begun:
        """Says that a provider is about to be asked. Raises `LeaseFenced`."""

    async def accept(self, job: ClaimedJob, number: int, request_id: str) -> None:
        """Says what the provider calls it."""

    async def settle(self, job: ClaimedJob, number: int, outcome: Outcome, detail: str) -> None:
        """Says what became of it."""


class NoJournal:
    """Nobody remembers calls: each may be made (GN62)."""

    async def begin(self, _job: ClaimedJob, _number: int, _model: str) -> Begun:
        """The call is new."""
        return Begun(is_new=True, request_id=None)

    async def accept(self, _job: ClaimedJob, _number: int, _request_id: str) -> None:
        """Nobody asks after it."""

    async def settle(self, _job: ClaimedJob, _number: int, _outcome: Outcome, _detail: str) -> None:
        """Nobody asks what became of it."""


class QueueJournal:
    """What the queue service remembers of calls, asked by one worker."""

    def __init__(self, client: Client, worker_id: str) -> None:
        self._client = client
        self._stub = ProviderCallServiceStub(client.channel)
        self._worker_id = worker_id

    async def begin(self, job: ClaimedJob, number: int, model: str) -> Begun:
        """Says that a provider is about to be asked. Raises `LeaseFenced`."""
        request = pb.BeginCallRequest(
            worker_id=self._worker_id, lease=lease_of(job), number=number, model=model
        )
        try:
            begun = await self._client.call(self._stub.BeginCall, request, Behalf())
        except Failure as failure:
            if failure.machine_word == LeaseFenced.reason:
                raise LeaseFenced from None
            raise
        return Begun(begun.is_new, begun.request_id if begun.HasField("request_id") else None)

    async def accept(self, job: ClaimedJob, number: int, request_id: str) -> None:
        """Says what the provider calls it."""
        await self._report(
            pb.ReportCallRequest(lease=lease_of(job), number=number, request_id=request_id)
        )

    async def settle(self, job: ClaimedJob, number: int, outcome: Outcome, detail: str) -> None:
        """Says what became of it."""
        await self._report(
            pb.ReportCallRequest(
                lease=lease_of(job),
                number=number,
                outcome=_OUTCOMES[outcome],
                detail=detail[:MAX_DETAIL_LENGTH],
            )
        )

    async def _report(self, request: pb.ReportCallRequest) -> None:
        await self._client.call(self._stub.ReportCall, request, Behalf())
