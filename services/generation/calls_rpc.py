"""Speaks of provider calls in gesso.generation.v1: messages into values and back."""

from gesso.generation.v1 import provider_calls_pb2 as pb
from gesso.generation.v1.provider_calls_pb2_grpc import ProviderCallServiceServicer

from servicekit.errors import Invalid
from servicekit.identity import Context
from servicekit.pages import NEWEST_KEY, page_of, page_size, place_from_token
from servicekit.times import timestamp_from_time
from services.generation.calls import ProviderCalls
from services.generation.domain.calls import (
    MAX_DETAIL_LENGTH,
    MAX_NUMBER,
    MAX_REQUEST_ID_LENGTH,
    Call,
    Outcome,
    UncertainCall,
)

MAX_MODEL_LENGTH = 200

_OUTCOMES: dict[int, Outcome] = {
    pb.PROVIDER_OUTCOME_SUCCEEDED: Outcome.SUCCEEDED,
    pb.PROVIDER_OUTCOME_FAILED: Outcome.FAILED,
    pb.PROVIDER_OUTCOME_CANCELLED: Outcome.CANCELLED,
}


class CallsRpc(ProviderCallServiceServicer):
    """The calls as gRPC."""

    def __init__(self, calls: ProviderCalls) -> None:
        self._calls = calls

    async def BeginCall(
        self, request: pb.BeginCallRequest, context: Context
    ) -> pb.BeginCallResponse:
        """See provider_calls.proto."""
        model = _text(request.model, "model", least=1, most=MAX_MODEL_LENGTH)
        call = Call(request.lease.job_id, request.lease.lease_token, request.number)
        begun = await self._calls.begin(request.worker_id, call, model)
        return pb.BeginCallResponse(is_new=begun.is_new, request_id=begun.request_id)

    async def ReportCall(
        self, request: pb.ReportCallRequest, context: Context
    ) -> pb.ReportCallResponse:
        """See provider_calls.proto."""
        call = Call(request.lease.job_id, request.lease.lease_token, request.number)
        if request.HasField("request_id"):
            request_id = _text(request.request_id, "requestId", least=1, most=MAX_REQUEST_ID_LENGTH)
            await self._calls.accept(call, request_id)
        else:
            detail = _text(request.detail, "detail", most=MAX_DETAIL_LENGTH)
            await self._calls.settle(call, _outcome(request.outcome), detail or None)
        return pb.ReportCallResponse()

    async def ListUncertainCalls(
        self, request: pb.ListUncertainCallsRequest, context: Context
    ) -> pb.ListUncertainCallsResponse:
        """See provider_calls.proto."""
        size = page_size(request.page_size)
        before = place_from_token(request.page_token, newest=(NEWEST_KEY, MAX_NUMBER + 1))
        found = await self._calls.uncertain(before, size + 1)
        shown, next_page_token = page_of(found, size, lambda call: (call.key, call.number))
        return pb.ListUncertainCallsResponse(
            calls=map(proto_from_uncertain, shown), next_page_token=next_page_token
        )

    async def ResolveCall(
        self, request: pb.ResolveCallRequest, context: Context
    ) -> pb.ResolveCallResponse:
        """See provider_calls.proto."""
        note = _text(request.note, "note", most=MAX_DETAIL_LENGTH)
        outcome = _outcome(request.outcome)
        await self._calls.resolve(request.job_id, request.number, outcome, note)
        return pb.ResolveCallResponse()


def proto_from_uncertain(call: UncertainCall) -> pb.UncertainCall:
    """A call whose outcome nobody knows, as a message."""
    return pb.UncertainCall(
        job_id=call.job_id,
        number=call.number,
        account_id=call.account_id,
        model=call.model,
        request_id=call.request_id,
        begin_time=timestamp_from_time(call.begun_at),
    )


def _outcome(number: int) -> Outcome:
    if number not in _OUTCOMES:
        raise Invalid("An outcome is succeeded, failed or cancelled.", path="outcome")
    return _OUTCOMES[number]


def _text(text: str, path: str, *, least: int = 0, most: int) -> str:
    if not least <= len(text) <= most:
        raise Invalid(f"{path} has {least} to {most} characters.", path=path)
    return text
