"""The operations endpoint against every kind of malformed JSON: told, and nothing stored."""

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.problems import REASONS
from services.canvas import server
from tests.support.services import browser, canvas_settings, gateway, gateway_settings

# JSON that readers do not agree about, or that no reader takes.
ODD = [
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 5_000,
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '{"a":1,"a":2}',
    "[" * 70 + "]" * 70,
    '{"x":' * 70 + "1" + "}" * 70,
    "[" * 3_000,
    "{",
    "nul",
    "'x'",
    "01",
    "+1",
    "[1,]",
    '"\\x41"',
    '"\t"',
    "",
    "/* x */ 1",
]
FINE = ["null", "true", "0", "-1", "1.5", '""', '"x"', "[]", "{}", '{"id":"a","type":"t"}']
PATHS = ['""', '"."', '"a..b"', '"__proto__.x"', '"id"', '"title.x"', '"metadata"', '"\\u0000"']
MEMBERS = ["id", "node", "patch", "before", "expected", "connection", "field", "value", "canvas"]
KINDS = [
    "create_canvas",
    "create_node",
    "patch_node",
    "remove_node",
    "create_connection",
    "update_connection",
    "remove_connection",
    "set_field",
    "explode",
]
TOKENS = st.sampled_from(ODD + FINE)


@st.composite
def objects(draw: st.DrawFn) -> str:
    """An object by text, with odd paths and values."""
    keys = draw(st.lists(st.sampled_from([*PATHS, '"title"', '"x"']), max_size=3))
    return "{" + ",".join(f"{key}:{draw(TOKENS)}" for key in keys) + "}"


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """A request by text: mostly of the right form, with something wrong somewhere."""
    operations = []
    for _ in range(draw(st.integers(0, 3))):
        members = draw(st.lists(st.sampled_from(MEMBERS), unique=True, max_size=4))
        parts = [f'"type":{json.dumps(draw(st.sampled_from(KINDS)))}']
        parts += [f'"{name}":{draw(TOKENS | objects())}' for name in members]
        operations.append("{" + ",".join(parts) + "}")
    fields = {
        "mutationId": draw(st.sampled_from(['"m"', *ODD[:8]])),
        "baseRevision": draw(st.sampled_from(["0", "-1", "1.5", "99999999999999999999", "null"])),
        "operations": "[" + ",".join(operations) + "]",
    }
    if draw(st.booleans()):
        fields["mutationId"], fields["baseRevision"] = json.dumps(secrets.token_hex(8)), "0"
    if draw(st.integers(0, 9)) == 0:
        fields[draw(st.sampled_from(["operations", "editProofs", "more"]))] = draw(TOKENS)
    return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"


@pytest.fixture(scope="session")
async def anna(shared_database: str, objects_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        server.serving(canvas_settings(shared_database, objects_url)) as port,
        gateway(
            gateway_settings(shared_database, objects_url, {"canvas": f"127.0.0.1:{port}"})
        ) as address,
        browser(address) as client,
    ):
        change = {
            "mutationId": "create",
            "baseRevision": 0,
            "operations": [{"type": "create_canvas", "canvas": {"title": "Fuzz"}}],
        }
        await client.patch("/api/canvas-projects/fuzz/operations", json=change)
        yield client


async def canvas(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/api/canvas-projects/fuzz")).json()
    return found


@given(bodies() | TOKENS | st.text(max_size=50))
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_whatever_is_sent_is_answered_and_stored_only_if_it_is_fine(
    anna: httpx.AsyncClient, body: str
) -> None:
    """CV2, GW6"""
    before = await canvas(anna)

    answer = await anna.patch(
        "/api/canvas-projects/fuzz/operations",
        content=body.encode("utf-8", "surrogatepass"),
        headers={"Content-Type": "application/json"},
    )

    after = await canvas(anna)
    if answer.status_code == 200:
        assert after["revision"] in (before["revision"], before["revision"] + 1)
        return
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["reason"] in REASONS
    assert after == before
