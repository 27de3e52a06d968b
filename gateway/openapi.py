"""The OpenAPI document, made of the endpoints that are served."""

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request

from gateway.endpoints import Access, Endpoint, Input, Media
from gateway.problems import MEDIA_TYPE, REASONS, Problem

_ALWAYS = ("invalid_argument", "method_not_allowed", "internal", "unavailable")
_TITLE = "Gesso"
_ABOUT = (
    "The back end of an AI generation canvas. Errors are problem documents (RFC 9457); `reason` "
    "is their stable word. A page signs in with a cookie and must then send an allowed `Origin` "
    "with every change; a script sends a bearer token."
)


def document(endpoints: Iterable[Endpoint], *, version: str) -> bytes:
    """The OpenAPI 3.1 document as JSON."""
    endpoints = list(endpoints)
    types = {kind for endpoint in endpoints for kind in _types(endpoint)} | {Problem}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    references = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, references, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": _TITLE,
                "version": version,
                "description": _ABOUT,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in endpoints)],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "session": {"type": "apiKey", "in": "cookie", "name": "gesso_session"},
                    "token": {"type": "http", "scheme": "bearer"},
                },
            },
        }
    )


def reasons_of(endpoint: Endpoint) -> list[str]:
    """Every reason of a problem document that the endpoint can answer with."""
    reasons = [*_ALWAYS, *endpoint.refusals]
    if endpoint.access is Access.ACCOUNT:
        reasons.append("unauthenticated")
    if endpoint.method != "GET":
        reasons.append("origin_not_allowed")
    if endpoint.body is not None:
        reasons += ["invalid_json", "unsupported_media_type", "too_large", "request_timeout"]
    return sorted(set(reasons))


def _types(endpoint: Endpoint) -> Iterable[type]:
    for kind in (endpoint.body, endpoint.query, *endpoint.answers.values()):
        if kind is not None and kind is not Request and not isinstance(kind, Media):
            yield kind


def _operation(
    endpoint: Endpoint, references: dict[type, Any], components: dict[str, Any]
) -> dict[str, Any]:
    summary, _, description = endpoint.summary.partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "tags": [endpoint.tag],
        "summary": summary,
        "parameters": _parameters(endpoint, components),
        "responses": _responses(endpoint, references),
        "security": [{"session": []}, {"token": []}] if endpoint.access is Access.ACCOUNT else [],
    }
    if description:
        operation["description"] = " ".join(description.split())
    if endpoint.body is Request:
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": _UPLOAD}}
    elif endpoint.body is not None:
        content = {"application/json": {"schema": references[endpoint.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


_UPLOAD = {
    "schema": {
        "type": "object",
        "required": ["file", "kind"],
        "properties": {
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "kind": {"enum": ["image", "video", "audio", "file"]},
        },
    }
}


def _parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in endpoint.path.split("/")
        if part.startswith("{")
    ]
    parameters += _query_parameters(endpoint.query, components)
    if endpoint.idempotent_by_key:
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "The same key and body give the first answer again.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
            }
        )
    return parameters


def _query_parameters(query: type[Input], components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components.get(query.__name__, {})
    return [
        {"name": name, "in": "query", "schema": {k: v for k, v in member.items() if k != "default"}}
        for name, member in schema.get("properties", {}).items()
    ]


def _responses(endpoint: Endpoint, references: dict[type, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): _answer(kind, references) for status, kind in endpoint.answers.items()
    }
    by_status: dict[int, list[str]] = {}
    for reason in reasons_of(endpoint):
        by_status.setdefault(REASONS[reason][0], []).append(reason)
    for status, reasons in sorted(by_status.items()):
        responses[str(status)] = {
            "description": ", ".join(f"`{reason}`" for reason in reasons),
            "content": {MEDIA_TYPE: {"schema": references[Problem]}},
        }
    return responses


def _answer(kind: Any, references: dict[type, Any]) -> dict[str, Any]:
    match kind:
        case None:
            return {"description": "No content."}
        case Media(type=media_type, description=description):
            return {"description": description, "content": {media_type: {}}}
        case _:
            return {
                "description": (kind.__doc__ or "").partition("\n")[0],
                "content": {"application/json": {"schema": references[kind]}},
            }
