"""Tells failures to the browser: RFC 9457 problem documents, nothing else, nowhere else."""

import re
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

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

MEDIA_TYPE = "application/problem+json"
DOCS = "/docs/problems"
RETRY_AFTER_SECONDS = 1

_STATUSES: dict[type[Failure], int] = {
    Invalid: 422,
    Unauthenticated: 401,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    FailedPrecondition: 409,
    TooMany: 429,
    Unavailable: 503,
}

# Every reason that an answer can give, its status, and what it means. A new or renamed reason is a
# change of the API.
REASONS: dict[str, tuple[int, str]] = {
    "asset_version_conflict": (409, "The stored asset is not the version that was read."),
    "backlog_full": (429, "Too much of this account waits already; try again later."),
    "canvas_agent_busy": (409, "Another agent run has the canvas."),
    "canvas_concurrent_write": (503, "The canvas was being changed; send the same request again."),
    "canvas_edit_lease_conflict": (
        409,
        "The text of a node is another session's to write, or a proof does not hold.",
    ),
    "canvas_field_conflict": (409, "A value seen before is not what is stored: read and rebase."),
    "canvas_media_assets_pending": (
        400,
        "Files or assets that nodes name are not registered; `missing` lists them.",
    ),
    "canvas_mutation_id_reused": (409, "The mutationId came with another request; never retry."),
    "canvas_object_missing": (409, "The node, connection or canvas is gone: read and rebase."),
    "canvas_too_large": (413, "The canvas would have too many nodes or bytes."),
    "changes_expired": (410, "The changes since then are not kept; read the whole canvas."),
    "email_taken": (409, "The e-mail address has an account."),
    "forbidden": (403, "This is not for you."),
    "idempotency_key_reused": (409, "The Idempotency-Key came with another request."),
    "inline_media": (400, "A value holds media as a data URL; upload it and name the resource."),
    "insufficient_balance": (402, "There are not enough credits; nothing was ordered."),
    "internal": (500, "Something went wrong on our side."),
    "invalid_argument": (422, "Something in the request is wrong; `errors` says where."),
    "invalid_credentials": (401, "The e-mail address or the password is wrong."),
    "invalid_cursor": (400, "`after` or `Last-Event-ID` is no place to go on from."),
    "invalid_json": (400, "The body is not JSON that all readers understand alike."),
    "invalid_operation": (400, "An operation is malformed; `operationIndex` says which."),
    "job_finishing": (409, "The job is over, or its end is on the way to the canvas."),
    "method_not_allowed": (405, "The path takes other methods; `Allow` names them."),
    "not_found": (404, "Not there, or somebody else's, which is the same."),
    "origin_not_allowed": (403, "A change by cookie must come from a page of ours."),
    "range_not_satisfiable": (416, "The range lies outside the file."),
    "rate_limited": (429, "Too often; `Retry-After` says when to try again."),
    "request_timeout": (408, "The body did not come in time."),
    "structured_storage_exceeded": (413, "The account keeps too much already; free some space."),
    "too_large": (413, "The body is longer than the route takes."),
    "unauthenticated": (401, "Nobody is signed in, or not any more."),
    "unavailable": (503, "A part of the suite does not answer; send the same request again."),
    "unsupported_media_type": (415, "The route takes another Content-Type."),
}


class Problem(msgspec.Struct, rename="camel"):
    """The members that every problem document has; a reason may add its facts."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    request_id: str


def status_of(failure: Failure) -> int:
    """The HTTP status of a failure."""
    known = REASONS.get(failure.machine_word)
    return known[0] if known else _STATUSES.get(family_of(failure), 500)


def response_from_failure(failure: Failure, request_id: str) -> Response:
    """The answer that tells a failure."""
    status = status_of(failure)
    headers: dict[str, str] = {}
    facts = dict(failure.facts)
    retry_after = facts.pop("retry_after_seconds", None)
    if status in (429, 503):
        headers["Retry-After"] = str(retry_after or RETRY_AFTER_SECONDS)
    if "allow" in facts:
        headers["Allow"] = facts.pop("allow")
    if "content_range" in facts:
        headers["Content-Range"] = facts.pop("content_range")
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        facts = _with_errors(facts, failure.detail)
    problem = Problem(
        type=f"{DOCS}#{failure.machine_word}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=failure.detail,
        reason=failure.machine_word,
        request_id=request_id,
    )
    document = msgspec.to_builtins(problem) | {_camel(name): fact for name, fact in facts.items()}
    return Response(msgspec.json.encode(document), status, headers=headers, media_type=MEDIA_TYPE)


def internal_error(request_id: str) -> Response:
    """The answer to a request that met a fault of ours."""
    return response_from_failure(
        Failure("Something went wrong on our side; the request id helps to find it."), request_id
    )


def _with_errors(facts: dict[str, Any], detail: str) -> dict[str, Any]:
    """422 lists what is wrong by path."""
    if "errors" in facts:
        return facts
    path = facts.pop("path", "")
    return {**facts, "errors": [{"path": _camel(path), "message": detail}]}


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
