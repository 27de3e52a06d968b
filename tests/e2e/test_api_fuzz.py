"""Requests made of the OpenAPI document, good ones and bad ones, to the suite as it runs."""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.suite import Up

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
ROUTES = "^/api/canvas-projects(/[^/]+(/(operations|sync-status|changes|edit-lease))?)?$"


@pytest.fixture(scope="module")
def page(up: Up) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=up.url, headers={"Origin": up.url}, timeout=30) as client:
        form = {"email": f"{secrets.token_hex(8)}@example.com", "password": "correct horse battery"}
        assert client.post("/api/auth/register", json=form).status_code == 201
        yield client


def new_canvas(page: httpx.Client) -> str:
    canvas_id = f"fuzz-{secrets.token_hex(8)}"
    node = {"id": "0", "type": "text", "title": "", "position": {"x": 0, "y": 0}, "metadata": {}}
    creation = {"type": "create_canvas", "canvas": {"title": "Fuzz", "nodes": [node]}}
    asked = {"mutationId": "made", "baseRevision": 0, "operations": [creation]}
    path = f"/api/canvas-projects/{canvas_id}/operations"
    assert page.patch(path, json=asked).status_code == 200
    return canvas_id


def answers(
    operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, page: httpx.Client
) -> set[int]:
    """Asks in many ways, good ones about a canvas that is there too; the statuses of the answers.

    Fails at the first answer that the document does not allow.
    """
    canvas_id = new_canvas(page)
    token = page.post("/api/auth/tokens", json={"name": "fuzz"}).json()["token"]
    statuses: set[int] = set()

    @settings(
        max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(case=operation.as_strategy(generation_mode=mode), there=st.booleans())
    def ask(case: Case[Any], there: bool) -> None:
        if there and "canvas_id" in case.path_parameters and mode is GenerationMode.POSITIVE:
            case.path_parameters["canvas_id"] = canvas_id
        response = case.call(headers={"Authorization": f"Bearer {token}"})
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    ask()
    return statuses


@pytest.mark.parametrize("mode", GenerationMode)
def test_canvas_routes_answer_as_the_document_says(
    up: Up, page: httpx.Client, mode: GenerationMode
) -> None:
    """GW9"""
    schema = schemathesis.openapi.from_url(f"{up.url}/openapi.json")
    statuses = {
        operation.label: answers(operation, mode, page)
        for found in schema.include(path_regex=ROUTES).get_all_operations()
        if isinstance(found, Ok)
        for operation in [found.ok()]
    }

    assert len(statuses) == 7
    if mode is GenerationMode.POSITIVE:
        assert all(seen - {404} for seen in statuses.values()), statuses
