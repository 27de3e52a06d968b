"""What the suite says about itself: the landing page, health, readiness, documentation."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from gateway.endpoints import Access, Answer, Call, Media, NoQuery, Output, endpoint
from gateway.pages import Pages
from gateway.readiness import Check, Readiness, readiness

_HTML = Media("text/html", "A page.")


class Health(Output, frozen=True):
    """The process is there."""

    status: str


class SuiteRoutes:
    """Open to anyone."""

    def __init__(
        self, pages: Pages, checks: Mapping[str, Check], *, needed: frozenset[str]
    ) -> None:
        self._pages = pages
        self._checks = checks
        self._needed = needed

    @endpoint("GET", "/", tag="suite", access=Access.ANYONE, answers={200: _HTML})
    async def landing(self, _call: Call[None, NoQuery]) -> Response:
        """See what runs and what to try."""
        return self._pages.landing()

    @endpoint("GET", "/docs", tag="suite", access=Access.ANYONE, answers={200: _HTML})
    async def docs(self, _call: Call[None, NoQuery]) -> Response:
        """Read and try the API."""
        return self._pages.docs()

    @endpoint("GET", "/docs/problems", tag="suite", access=Access.ANYONE, answers={200: _HTML})
    async def problems(self, _call: Call[None, NoQuery]) -> Response:
        """Read what each reason of a problem document means."""
        return self._pages.problems()

    @endpoint(
        "GET",
        "/static/{name}",
        tag="suite",
        access=Access.ANYONE,
        answers={200: Media("application/octet-stream", "A part of a page.")},
        refusals=("not_found",),
    )
    async def static(self, call: Call[None, NoQuery]) -> Response:
        """Read a script, style or picture of the pages."""
        return self._pages.static(call.path["name"])

    @endpoint(
        "GET",
        "/openapi.json",
        tag="suite",
        access=Access.ANYONE,
        answers={200: Media("application/json", "The OpenAPI 3.1 document.")},
    )
    async def openapi(self, _call: Call[None, NoQuery]) -> Response:
        """Read the OpenAPI document of this API."""
        return self._pages.openapi()

    @endpoint("GET", "/healthz", tag="suite", access=Access.ANYONE, answers={200: Health})
    async def health(self, _call: Call[None, NoQuery]) -> Answer:
        """Say that this process is there."""
        return Answer(Health(status="ok"))

    @endpoint(
        "GET",
        "/readyz",
        tag="suite",
        access=Access.ANYONE,
        answers={200: Readiness, 503: Readiness},
    )
    async def ready(self, _call: Call[None, NoQuery]) -> Answer | Response:
        """Say of every service and store whether it works. 503 only when nothing can work."""
        found = await readiness(self._checks, needed=self._needed)
        status = 503 if found.status == "unavailable" else 200
        content = msgspec.json.encode(found)
        return Response(content, status, media_type="application/json")
