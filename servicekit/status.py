"""Carries failures across gRPC: a status with `google.rpc.ErrorInfo`, and back."""

import json
from typing import Any, cast

import grpc
from google.protobuf.any_pb2 import Any as ProtoAny
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from servicekit.errors import (
    Conflict,
    Denied,
    FailedPrecondition,
    Failure,
    Invalid,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
    family_of,
)
from servicekit.times import rfc3339

# Whatever a client had put into its request, its failure must fit into the trailers of the call
# (wire.MAX_METADATA_BYTES), where the detail stands twice.
MAX_DETAIL_BYTES = 2_000
MAX_TEXT_FACT_BYTES = 4_096

CODES: dict[type[Failure], grpc.StatusCode] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.ABORTED,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    TooMany: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
_NO_RETRY = ("grpc-retry-pushback-ms", "-1")
_FAMILIES = {code: family for family, code in CODES.items()}
_CODES_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}

# Codes that gRPC itself makes when a call did not get an answer.
_NO_ANSWER = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def message_from_failure(failure: Failure, *, domain: str) -> Status:
    """The status of a failure as a message.

    `domain` names the service, e.g. `canvas.gesso`. Facts become ErrorInfo metadata, each value
    as JSON; times in them as RFC 3339. A detail of more than 2,000 bytes and a text of more than
    4 KiB of JSON are cut; other facts are as small as their makers keep them.
    """
    info = ErrorInfo(
        reason=failure.machine_word.upper(),
        domain=domain,
        metadata={name: _fact(value) for name, value in failure.facts.items()},
    )
    packed = ProtoAny()
    packed.Pack(info)
    code = CODES[family_of(failure)]
    detail = failure.detail.encode()[:MAX_DETAIL_BYTES].decode(errors="ignore")
    return Status(code=code.value[0], message=detail, details=[packed])


def status_from_failure(failure: Failure, *, domain: str) -> grpc.Status:
    """The gRPC status of a failure, see `message_from_failure`."""
    status: Any = rpc_status.to_status(message_from_failure(failure, domain=domain))
    if isinstance(failure, Unavailable):
        # The caller's gRPC must not repeat what we have given up on; the caller may.
        status = status._replace(trailing_metadata=(*status.trailing_metadata, _NO_RETRY))
    return cast(grpc.Status, status)


def failure_from_rpc(error: grpc.aio.AioRpcError) -> Failure | None:
    """The failure that a call ended with, in its family, or None if the callee is at fault.

    A call without an answer (lost, late, turned away) is `Unavailable`: nobody knows whether it
    happened.
    """
    # Typed for the blocking API's calls; it reads the same three things of ours.
    status = rpc_status.from_call(cast(grpc.Call, error))
    return _failure(error.code(), error.details() or "", status)


def error_from_message(status: Status) -> Failure | grpc.aio.AioRpcError:
    """What a call would have raised that ended with this status."""
    code = _CODES_BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    none = grpc.aio.Metadata()
    return _failure(code, status.message, status) or grpc.aio.AioRpcError(
        code, none, none, details=status.message
    )


def no_answer() -> Unavailable:
    """The failure of a call that got no answer."""
    return Unavailable("A part of the service did not answer; send the same request again.")


def _failure(code: grpc.StatusCode, detail: str, status: Status | None) -> Failure | None:
    info = _error_info(status)
    if info is not None and code in _FAMILIES:
        failure = Failure.__new__(_FAMILIES[code])
        facts = {name: json.loads(value) for name, value in info.metadata.items()}
        Failure.__init__(failure, detail, reason=info.reason.lower(), **facts)
        return failure
    return no_answer() if code in _NO_ANSWER else None


def _fact(value: Any) -> str:
    text = _json(value)
    while isinstance(value, str) and len(text.encode()) > MAX_TEXT_FACT_BYTES:
        # By halves, since how much longer the JSON is depends on the characters.
        value = value[: len(value) // 2]
        text = _json(f"{value}…")
    return text


def _json(value: Any) -> str:
    return json.dumps(value, default=rfc3339, ensure_ascii=False)


def _error_info(status: Status | None) -> ErrorInfo | None:
    for detail in status.details if status is not None else ():
        info = ErrorInfo()
        if detail.Unpack(info):
            return info
    return None
