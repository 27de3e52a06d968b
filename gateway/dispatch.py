"""Takes a request through its endpoint: who asks, what was sent, the answer or the problem."""

import asyncio
import gzip
import re
import secrets
import time
from collections.abc import Iterable
from functools import cache
from typing import Any, NoReturn

import grpc
import msgspec
import msgspec.inspect
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.auth import Asker, Doorkeeper, cookie
from gateway.endpoints import Access, Answer, Call, Endpoint, Input
from gateway.failures import (
    MethodNotAllowed,
    NoSuchPath,
    RequestTimeout,
    SignedOut,
    TooLarge,
    UnsupportedMediaType,
)
from gateway.metrics import HttpMetrics
from gateway.problems import internal_error, response_from_failure
from servicekit import strictjson
from servicekit.errors import Failure, Invalid
from servicekit.telemetry import Log, logger, pseudonym

BODY_SECONDS = 30.0
# A canvas nests 64 deep, an operation holds it six levels down.
MAX_DEPTH = strictjson.MAX_DEPTH + 8
COMPRESS_FROM_BYTES = 2 * 1024
COMPRESS_IN_THREAD_FROM_BYTES = 64 * 1024
MAX_KEY_LENGTH = 200

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")


class Dispatcher:
    """Serves endpoints; the one place where a failure becomes a problem document."""

    def __init__(self, doorkeeper: Doorkeeper, metrics: HttpMetrics, *, secure: bool) -> None:
        self._doorkeeper = doorkeeper
        self._metrics = metrics
        self._secure = secure
        self._log: Log = logger("gateway.http")

    def routes(self, endpoints: Iterable[Endpoint]) -> list[BaseRoute]:
        """The routes of the endpoints, one a path, and what answers all other paths."""
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        routes: list[BaseRoute] = [
            Route(path, _Path(self, path, by_path[path])) for path in sorted(by_path, key=_breadth)
        ]
        return [*routes, Route("/{path:path}", _Path(self, "unknown", {}))]

    async def answer(self, request: Request, path: str, methods: dict[str, Endpoint]) -> Response:
        """The answer to a request for a path that takes these methods."""
        started = time.perf_counter()
        request_id = _request_id(request)
        asker: Asker | None = None
        try:
            endpoint = _endpoint(request, methods)
            asker = await self._admitted(request, endpoint)
            call = await _call(request, request_id, endpoint, asker)
            response = await _response(request, await endpoint.handler(call))
        except Failure as failure:
            response = response_from_failure(failure, request_id)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            # A callee has logged its own fault already.
            shown = not isinstance(error, grpc.aio.AioRpcError)
            self._log.error("fault", path=path, request_id=request_id, exc_info=shown)
            response = internal_error(request_id)
        self._finish(response, request_id, asker)
        seconds = time.perf_counter() - started
        self._metrics.seconds.labels(request.method, path, response.status_code).observe(seconds)
        self._log.info(
            "request",
            method=request.method,
            path=path,
            status=response.status_code,
            ms=round(seconds * 1000, 1),
            request_id=request_id,
            account=pseudonym(asker.account.account_id) if asker else None,
        )
        return response

    async def _admitted(self, request: Request, endpoint: Endpoint) -> Asker | None:
        self._doorkeeper.check_page(request, method=request.method)
        if endpoint.access is Access.ANYONE:
            # Not even looked for: what is open to anyone works without the database.
            return None
        asker = await self._doorkeeper.asker(request, slides=True)
        if asker is None:
            raise SignedOut
        return asker

    def _finish(self, response: Response, request_id: str, asker: Asker | None) -> None:
        response.headers["X-Request-Id"] = request_id
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Cache-Control", "no-store")
        if asker and asker.extended and asker.secret and "set-cookie" not in response.headers:
            response.headers["Set-Cookie"] = cookie(asker.secret, secure=self._secure)


class _Path:
    """One path as an ASGI application, which takes every method."""

    def __init__(self, dispatcher: Dispatcher, path: str, methods: dict[str, Endpoint]) -> None:
        self._dispatcher = dispatcher
        self._path = path
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._dispatcher.answer(request, self._path, self._methods)
        await response(scope, receive, send)


def _breadth(path: str) -> list[bool]:
    """Sorts a path that says more of itself before one whose parameters would match it too."""
    return [segment.startswith("{") for segment in path.split("/")]


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _endpoint(request: Request, methods: dict[str, Endpoint]) -> Endpoint:
    if not methods:
        raise NoSuchPath
    method = "GET" if request.method == "HEAD" else request.method
    if method not in methods:
        raise MethodNotAllowed(", ".join(sorted(methods)))
    return methods[method]


async def _call(
    request: Request, request_id: str, endpoint: Endpoint, asker: Asker | None
) -> Call[Any, Any]:
    return Call(
        request=request,
        request_id=request_id,
        asker=asker,
        body=await _body(request, endpoint),
        query=_query(request, endpoint.query),
        path=request.path_params,
        idempotency_key=_idempotency_key(request),
    )


def _idempotency_key(request: Request) -> str:
    key = request.headers.get("idempotency-key")
    if key is None:
        return ""
    # An empty one is a mistake that no key at all would hide until something happens twice.
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise Invalid(f"A key has 1 to {MAX_KEY_LENGTH} characters.", path="Idempotency-Key")
    return key


def _query(request: Request, kind: type[Input]) -> Input:
    given = request.query_params.multi_items()
    if any("\0" in value for _, value in given):
        raise Invalid("The query contains U+0000.")
    lists = _lists(kind)
    values: dict[str, Any] = {}
    for name, value in given:
        if name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Invalid("Given twice.", path=name)
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse(error)


@cache
def _lists(kind: type[Input]) -> frozenset[str]:
    """The members of a query that may be given several times."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(
        field.encode_name
        for field in info.fields
        if isinstance(field.type, msgspec.inspect.ListType)
    )


async def _body(request: Request, endpoint: Endpoint) -> Any:
    if endpoint.body is None or endpoint.body is Request:
        return None
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("application/json")
    text = await _whole_body(request, endpoint.max_body_bytes)
    value = strictjson.loads(text, max_depth=MAX_DEPTH)
    try:
        return msgspec.convert(value, endpoint.body)
    except msgspec.ValidationError as error:
        _refuse(error)


async def _whole_body(request: Request, limit: int) -> bytes:
    """The body of a request. Raises `TooLarge`, and `RequestTimeout` for one that trickles."""
    if int(request.headers.get("content-length") or 0) > limit:
        raise TooLarge(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise TooLarge(limit)
                parts.append(part)
    except TimeoutError:
        raise RequestTimeout from None
    return b"".join(parts)


def _refuse(error: msgspec.ValidationError) -> NoReturn:
    """Tells what msgspec found, e.g. "Expected `str`, got `int` - at `$.email`"."""
    message, _, place = str(error).partition(" - at `")
    path = place.removesuffix("`").removeprefix("$").removeprefix(".")
    raise Invalid(f"{message.replace('`', '')}.", path=path) from None


async def _response(request: Request, answer: Answer | Response) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer.value is None:
        return Response(status_code=answer.status, headers=answer.headers)
    content = msgspec.json.encode(answer.value)
    headers = answer.headers
    if len(content) >= COMPRESS_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        content = await _compressed(content)
        headers = {**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(content, answer.status, headers, media_type="application/json")


async def _compressed(content: bytes) -> bytes:
    if len(content) < COMPRESS_IN_THREAD_FROM_BYTES:
        return gzip.compress(content, compresslevel=1)
    return await asyncio.to_thread(gzip.compress, content, 1)
