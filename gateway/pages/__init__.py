"""The pages that the gateway itself serves: landing, API documentation, reasons of problems."""

import mimetypes
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import Response

from gateway.failures import NoSuchPath
from gateway.problems import REASONS

_HERE = Path(__file__).parent
_CACHED = {"Cache-Control": "public, max-age=3600"}
# Swagger UI sets styles on its elements and draws icons from data URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_OWN = ("gesso.css", "landing.js", "docs.js", "favicon.svg")
_SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")


class Pages:
    """Pages, read once at start."""

    def __init__(self, openapi: bytes) -> None:
        templates = Environment(
            loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined
        )
        self._landing = templates.get_template("landing.html").render()
        self._docs = templates.get_template("docs.html").render()
        self._problems = templates.get_template("problems.html").render(reasons=REASONS)
        self._openapi = openapi
        self._static = {name: _HERE / name for name in _OWN}
        self._static |= {name: _swagger() / name for name in _SWAGGER}

    def landing(self) -> Response:
        """What runs and what to try."""
        return _page(self._landing)

    def docs(self) -> Response:
        """The API, to read and try."""
        return _page(self._docs)

    def problems(self) -> Response:
        """What each reason means."""
        return _page(self._problems)

    def openapi(self) -> Response:
        """The OpenAPI document."""
        return Response(self._openapi, headers=_CACHED, media_type="application/json")

    def static(self, name: str) -> Response:
        """A part of a page. Raises `NoSuchPath`."""
        path = self._static.get(name)
        if path is None:
            raise NoSuchPath
        return Response(
            path.read_bytes(), headers=_CACHED, media_type=mimetypes.guess_type(name)[0]
        )


def _page(html: str) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return Response(html, headers=headers, media_type="text/html")


def _swagger() -> Path:
    # The package brings Swagger UI's files; nothing of its Python is used.
    spec = find_spec("swagger_ui")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "static"
