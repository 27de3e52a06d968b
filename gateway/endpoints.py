"""Declares endpoints, so that what is served and what is documented cannot differ."""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Asker
from servicekit.identity import Behalf

MAX_BODY_BYTES = 64 * 1024

_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Body = TypeVar("Body")
Query = TypeVar("Query")


class Input(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """What a client sends: unknown members are refused, with their path."""


class Output(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """What a client gets: members at their default (absent) are left out."""


class NoQuery(Input, frozen=True):
    """An endpoint that takes no query."""


class PageQuery(Input, frozen=True):
    """Which page of a list."""

    page_size: Annotated[int, Meta(ge=0, le=200)] = 0
    page_token: str = ""


class Access(Enum):
    """Who may call an endpoint."""

    ANYONE = "anyone"
    ACCOUNT = "account"


@dataclass(frozen=True)
class Media:
    """A body that is not JSON: its media type, and what it holds."""

    type: str
    description: str


@dataclass(frozen=True)
class Endpoint:
    """One method of one path, and all that can be said of it."""

    method: str
    path: str
    summary: str
    tag: str
    access: Access
    body: Any
    query: type[Input]
    answers: dict[int, Any]
    refusals: tuple[str, ...]
    max_body_bytes: int
    idempotent_by_key: bool
    handler: Callable[["Call[Any, Any]"], Awaitable["Answer | Response"]]


@dataclass(frozen=True)
class Call(Generic[Body, Query]):
    """One request, read and checked."""

    request: Request
    request_id: str
    asker: Asker | None
    body: Body
    query: Query
    path: dict[str, str]
    idempotency_key: str

    @property
    def signed_in(self) -> Asker:
        """Who is signed in, at endpoints where somebody must be."""
        assert self.asker is not None
        return self.asker

    @property
    def behalf(self) -> Behalf:
        """For whom services are called."""
        return Behalf(
            account_id=self.signed_in.account.account_id,
            request_id=self.request_id,
            trace=_trace(self.request),
        )


def _trace(request: Request) -> str | None:
    """The W3C trace context of a request; one that is not well-formed is none."""
    given = request.headers.get("traceparent", "")
    return given if _TRACE.fullmatch(given) else None


@dataclass(frozen=True)
class Answer:
    """An answer in JSON. `value` may be a `msgspec.Raw` that is passed on as it is."""

    value: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def endpoint(
    method: str,
    path: str,
    *,
    tag: str,
    answers: dict[int, Any],
    refusals: tuple[str, ...] = (),
    body: Any = None,
    query: type[Input] = NoQuery,
    access: Access = Access.ACCOUNT,
    max_body_bytes: int = MAX_BODY_BYTES,
    idempotent_by_key: bool = False,
) -> Callable[[Any], Any]:
    """Marks a method of a routes class as an endpoint; its docstring is the documentation.

    `answers` maps each status to the type of its body (a `Media`, or None for no body);
    `refusals` are the reasons of problem documents beside those that any endpoint can give.
    """

    def mark(handler: Any) -> Any:
        handler.endpoint = {
            "method": method,
            "path": path,
            "summary": (handler.__doc__ or "").strip(),
            "tag": tag,
            "access": access,
            "body": body,
            "query": query,
            "answers": answers,
            "refusals": refusals,
            "max_body_bytes": max_body_bytes,
            "idempotent_by_key": idempotent_by_key,
        }
        return handler

    return mark


def endpoints_of(routes: object) -> Iterator[Endpoint]:
    """The endpoints that an object's methods are marked as, in the order of the class."""
    for name in type(routes).__dict__:
        handler = getattr(routes, name)
        facts = getattr(handler, "endpoint", None)
        if facts is not None:
            yield Endpoint(**facts, handler=handler)
