"""What every call to a service passes through: identity, deadline, failures, metrics, logs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc.status_pb2 import Status
from prometheus_client import Histogram

from servicekit.errors import Failure, family_of
from servicekit.identity import CALLER, REQUEST_ID, Context, check_credentials
from servicekit.status import CODES, message_from_failure, status_from_failure
from servicekit.telemetry import Log, Metrics

UNARY_SECONDS = 30.0

# Anyone may ask whether we are well, and what we serve.
_OPEN = ("/grpc.health.v1.", "/grpc.reflection.")

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
else:  # generic in its stubs only
    Handler = grpc.RpcMethodHandler


class Endings:
    """How requests end: measured, what nobody expected logged once and told to nobody.

    `domain` names the service in failures.
    """

    def __init__(self, *, domain: str, metrics: Metrics, log: Log) -> None:
        self.domain = domain
        self._metrics = metrics
        self._log = log
        self._histograms: dict[tuple[str, grpc.StatusCode], Histogram] = {}

    def status(self, error: BaseException, method: str, **who: str) -> Status:
        """What a request within a stream ends with: the status that a call would have."""
        if isinstance(error, Failure):
            return message_from_failure(error, domain=self.domain)
        code = code_of(error)
        message = "The call took too long."
        if code is grpc.StatusCode.INTERNAL:
            message = self.fault(error, method, **who)
        return Status(code=code.value[0], message=message)

    def fault(self, error: BaseException, method: str, **who: str) -> str:
        """Logs what nobody expected; what the caller is told of it."""
        self._log.error("fault", method=method, exc_info=error, **who)
        return "internal error"

    def observe(self, method: str, code: grpc.StatusCode, started: float) -> None:
        """Measures a request that has ended; `started` is of `time.perf_counter`."""
        histogram = self._histograms.get((method, code))
        if histogram is None:
            histogram = self._metrics.rpc_seconds.labels(method, code.name)
            self._histograms[method, code] = histogram
        histogram.observe(time.perf_counter() - started)


class Guard(grpc.aio.ServerInterceptor):
    """Lets calls of the suite's own processes in, and failures out as statuses.

    Without `tokens` anyone may call.
    A unary call without a deadline gets one of 30 seconds. Expected failures become statuses with
    ErrorInfo; anything else is logged once with its traceback and told as "internal error".
    """

    def __init__(self, *, tokens: Sequence[str] | None, endings: Endings) -> None:
        self._tokens = None if tokens is None else tuple(token.encode() for token in tokens)
        self._endings = endings
        self._guarded_handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of a call, inside the guard."""
        method = handler_call_details.method
        known = self._guarded_handlers.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_OPEN):
            return handler
        guarded = self._handler(method, handler)
        self._guarded_handlers[method] = guarded
        return guarded

    def _handler(self, method: str, handler: Handler) -> Handler:
        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler.unary_unary), *codec
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream), *codec
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(method, handler.stream_stream), *codec
            )
        raise TypeError(f"{method}: calls that stream only their request are not served")

    def _unary(self, method: str, behave: Any) -> Any:
        async def guarded(request: Any, context: Context) -> Any:
            started = time.perf_counter()
            code = grpc.StatusCode.OK
            try:
                self._admit(context)
                if context.time_remaining() is not None:
                    return await behave(request, context)
                async with asyncio.timeout(UNARY_SECONDS):
                    return await behave(request, context)
            except BaseException as error:
                code = code_of(error)
                await self._tell(error, code, method, context)
                raise
            finally:
                self._endings.observe(method, code, started)

        return guarded

    def _stream(self, method: str, behave: Any) -> Any:
        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            started = time.perf_counter()
            code = grpc.StatusCode.OK
            try:
                self._admit(context)
                async for response in behave(request, context):
                    yield response
            except BaseException as error:
                code = code_of(error)
                await self._tell(error, code, method, context)
                raise
            finally:
                self._endings.observe(method, code, started)

        return guarded

    def _admit(self, context: Context) -> None:
        if self._tokens is not None:
            check_credentials(context.invocation_metadata() or (), self._tokens)

    async def _tell(
        self, error: BaseException, code: grpc.StatusCode, method: str, context: Context
    ) -> None:
        """Ends the call with the status of a failure. Returns if there is none to tell."""
        if isinstance(error, Failure):
            await context.abort_with_status(status_from_failure(error, domain=self._endings.domain))
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            await context.abort(code, "The call took too long.")
        if code is grpc.StatusCode.INTERNAL:
            await context.abort(code, self._endings.fault(error, method, **_who(context)))


def code_of(error: BaseException) -> grpc.StatusCode:
    """The status that a call which raised this ends with."""
    if isinstance(error, Failure):
        return CODES[family_of(error)]
    if isinstance(error, TimeoutError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
        return grpc.StatusCode.INTERNAL
    return grpc.StatusCode.CANCELLED


def _who(context: Context) -> dict[str, str]:
    metadata = dict(context.invocation_metadata() or ())
    return {
        "caller": str(metadata.get(CALLER, "")),
        "request_id": str(metadata.get(REQUEST_ID, "")),
    }
