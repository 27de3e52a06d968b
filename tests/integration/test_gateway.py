"""The gateway over HTTP, with the real canvas service behind it."""

import asyncio
import gzip
import io
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import httpx
import pytest
from openapi_spec_validator import validate
from PIL import Image
from structlog.testing import capture_logs

from gateway.problems import REASONS
from tests.support.services import (
    ORIGIN,
    PASSWORD,
    browser,
    canvas_settings,
    gateway,
    gateway_settings,
)


@pytest.fixture(scope="session")
async def address(shared_database: str, objects_url: str) -> AsyncIterator[str]:
    """A gateway with canvas behind it; the other services are away."""
    from services.canvas import server

    async with (
        server.serving(canvas_settings(shared_database, objects_url)) as port,
        gateway(
            gateway_settings(shared_database, objects_url, {"canvas": f"127.0.0.1:{port}"})
        ) as found,
    ):
        yield found


@pytest.fixture
async def anna(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(address) as client:
        yield client


@pytest.fixture
async def bert(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(address) as client:
        yield client


def create(canvas_id: str = "c", **canvas: Any) -> dict[str, Any]:
    operation = {"type": "create_canvas", "canvas": {"title": "A canvas", **canvas}}
    return change(operation, mutation_id=f"create-{canvas_id}")


def change(*operations: Any, mutation_id: str = "") -> dict[str, Any]:
    return {
        "mutationId": mutation_id or secrets.token_hex(8),
        "baseRevision": 0,
        "operations": list(operations),
    }


def path(canvas_id: str = "c") -> str:
    return f"/api/canvas-projects/{canvas_id}"


def assert_problem(answer: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["reason"] == reason
    assert problem["status"] == status
    assert problem["requestId"] == answer.headers["x-request-id"]
    return problem


PNG = io.BytesIO()
Image.new("RGB", (12, 7), "teal").save(PNG, "PNG")


async def upload(client: httpx.AsyncClient, content: bytes, kind: str, **headers: str) -> Any:
    return await client.post(
        "/api/resources", files={"file": ("a.bin", content)}, data={"kind": kind}, headers=headers
    )


async def test_signing_up_signs_in_and_signing_out_ends_it(address: str) -> None:
    """GW1"""
    email = f"{secrets.token_hex(6)}@example.com"
    async with httpx.AsyncClient(base_url=address, headers={"Origin": ORIGIN}) as client:
        made = await client.post(
            "/api/auth/register", json={"email": f" {email.upper()} ", "password": PASSWORD}
        )
        me = await client.get("/api/me")
        cookie = client.cookies["gesso_session"]
        out = await client.post("/api/auth/logout")
        client.cookies.set("gesso_session", cookie)
        after = await client.get("/api/me")
        again = await client.post("/api/auth/logout")
        back = await client.post("/api/auth/login", json={"email": email, "password": PASSWORD})

    assert (made.status_code, made.json()["email"]) == (201, email)
    assert "HttpOnly" in made.headers["set-cookie"]
    assert "SameSite=Lax" in made.headers["set-cookie"]
    assert me.json()["id"] == made.json()["id"]
    assert (out.status_code, again.status_code) == (204, 204)
    assert "Max-Age=0" in again.headers["set-cookie"]
    assert_problem(after, 401, "unauthenticated")
    assert back.status_code == 200


async def test_a_session_that_is_over_is_forgotten(database: str, objects_url: str) -> None:
    """GW1"""
    async with gateway(gateway_settings(database, objects_url, {})) as found:
        for _ in range(2):
            async with browser(found):
                pass
    connection = await asyncpg.connect(database)
    ended = await connection.fetchval(
        "UPDATE gateway.session SET expires_at = now() WHERE secret_hash = "
        "(SELECT secret_hash FROM gateway.session LIMIT 1) RETURNING secret_hash"
    )

    async with gateway(gateway_settings(database, objects_url, {})), asyncio.timeout(10):
        while ended in await _sessions(connection):
            await asyncio.sleep(0.01)
    left = await _sessions(connection)
    await connection.close()

    assert len(left) == 1


async def _sessions(connection: "asyncpg.Connection[asyncpg.Record]") -> list[bytes]:
    return [row[0] for row in await connection.fetch("SELECT secret_hash FROM gateway.session")]


async def test_an_address_has_one_account(address: str) -> None:
    """GW1"""
    account = {"email": f"{secrets.token_hex(6)}@example.com", "password": PASSWORD}
    async with httpx.AsyncClient(base_url=address) as client:
        answers = await asyncio.gather(
            *(client.post("/api/auth/register", json=account) for _ in range(4))
        )

    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    assert_problem(max(answers, key=lambda answer: answer.status_code), 409, "email_taken")


@pytest.mark.parametrize(
    "account",
    [
        {"email": "nobody", "password": PASSWORD},
        {"email": "a@b", "password": PASSWORD},
        {"email": "a b@example.com", "password": PASSWORD},
        {"email": "@example.com", "password": PASSWORD},
        {"email": "a@example.com", "password": "short"},
        {"email": "a@example.com", "password": "x" * 201},
        {"email": "a@example.com"},
        {"email": 7, "password": PASSWORD},
        {"email": "a@example.com", "password": PASSWORD, "admin": True},
    ],
)
async def test_what_cannot_be_an_account_is_refused(address: str, account: Any) -> None:
    async with httpx.AsyncClient(base_url=address) as client:
        answer = await client.post("/api/auth/register", json=account)

    problem = assert_problem(answer, 422, "invalid_argument")
    assert problem["errors"][0]["message"]


async def test_wrong_credentials_tell_nothing(anna: httpx.AsyncClient, address: str) -> None:
    """GW2"""
    me = (await anna.get("/api/me")).json()["email"]
    async with httpx.AsyncClient(base_url=address) as client:
        wrong = await client.post("/api/auth/login", json={"email": me, "password": "x" * 10})
        nobody = await client.post(
            "/api/auth/login", json={"email": "nobody@example.com", "password": "x" * 10}
        )

    first = assert_problem(wrong, 401, "invalid_credentials")
    second = assert_problem(nobody, 401, "invalid_credentials")
    assert first["detail"] == second["detail"]


# Whoever signs in under the address of somebody else must not use up their tries.
@pytest.mark.parametrize("email", ["somebody@example.com", "127.0.0.1"])
async def test_tries_are_limited(shared_database: str, objects_url: str, email: str) -> None:
    """GW2"""
    settings = gateway_settings(shared_database, objects_url, {}, tries_per_minute=3)
    async with gateway(settings) as found, httpx.AsyncClient(base_url=found) as client:
        wrong = {"email": email, "password": "x" * 10}
        answers = [await client.post("/api/auth/login", json=wrong) for _ in range(4)]

    assert [answer.status_code for answer in answers] == [401, 401, 401, 429]
    assert_problem(answers[-1], 429, "rate_limited")
    assert int(answers[-1].headers["retry-after"]) > 0


async def test_a_bearer_token_needs_no_origin_and_ends_when_deleted(
    anna: httpx.AsyncClient, address: str
) -> None:
    """GW3"""
    made = (await anna.post("/api/auth/tokens", json={"name": "script"})).json()
    bearer = {"Authorization": f"Bearer {made['token']}"}
    async with httpx.AsyncClient(base_url=address, headers=bearer) as script:
        created = await script.patch(f"{path()}/operations", json=create())
        listed = (await anna.get("/api/auth/tokens")).json()["tokens"]
        gone = await script.delete(f"/api/auth/tokens/{made['id']}")
        after = await script.get("/api/me")

    assert created.status_code == 200
    assert [token["name"] for token in listed] == ["script"]
    assert "token" not in listed[0]
    assert gone.status_code == 204
    assert_problem(after, 401, "unauthenticated")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", None])
async def test_a_change_from_a_foreign_page_is_refused(
    anna: httpx.AsyncClient, origin: str | None
) -> None:
    """GW4"""
    del anna.headers["Origin"]
    headers = {} if origin is None else {"Origin": origin}

    change_ = await anna.patch(f"{path()}/operations", json=create(), headers=headers)
    login = await anna.post("/api/auth/logout", headers=headers)
    read = await anna.get("/api/me", headers=headers)

    assert_problem(change_, 403, "origin_not_allowed")
    assert_problem(login, 403, "origin_not_allowed")
    assert read.status_code == 200


async def test_a_page_of_ours_may_leave_the_origin_out(anna: httpx.AsyncClient) -> None:
    """GW4"""
    del anna.headers["Origin"]

    answer = await anna.patch(
        f"{path()}/operations", json=create(), headers={"Sec-Fetch-Site": "same-origin"}
    )

    assert answer.status_code == 200


async def test_the_same_mutation_eight_times_at_once_answers_the_same_bytes(
    anna: httpx.AsyncClient,
) -> None:
    """CV10"""
    body = create(nodes=[{"id": "a", "type": "text"}])

    answers = await asyncio.gather(
        *(anna.patch(f"{path()}/operations", json=body) for _ in range(8))
    )

    assert {answer.content for answer in answers} == {answers[0].content}
    replayed = [answer.headers.get("idempotent-replayed") for answer in answers]
    assert sorted(map(str, replayed)) == ["None"] + ["true"] * 7
    assert answers[0].json()["revision"] == 1


async def test_a_stale_baseline_is_told_with_what_is_there(anna: httpx.AsyncClient) -> None:
    await anna.patch(f"{path()}/operations", json=create(nodes=[{"id": "a", "type": "text"}]))
    stale = {"type": "patch_node", "id": "a", "patch": {"title": "x"}, "before": {"title": "y"}}
    node = {"type": "create_node", "node": {"id": "b", "type": "text"}}

    answer = await anna.patch(f"{path()}/operations", json=change(node, stale))

    problem = assert_problem(answer, 409, "canvas_field_conflict")
    assert (problem["operationIndex"], problem["path"], problem["objectId"]) == (1, "title", "a")
    assert problem["currentValue"] is None
    assert len((await anna.get(path())).json()["nodes"]) == 1


async def test_json_comes_back_as_it_was(anna: httpx.AsyncClient) -> None:
    """CV3"""
    odd: dict[str, Any] = {
        "empty": {},
        "list": [None, True, False, 0, -1.5, 1e-7, 10**20, "\u2028", "🙋‍♀️ e\u0301", [[]]],
        "dotted.key": {"日本": "語"},
        "null": None,
    }
    await anna.patch(
        f"{path()}/operations", json=create(nodes=[{"id": "a", "type": "x", "metadata": odd}])
    )

    found = (await anna.get(path())).json()

    assert found["nodes"][0]["metadata"] == odd


async def test_a_known_canvas_is_not_sent_again(anna: httpx.AsyncClient) -> None:
    """CV15"""
    await anna.patch(f"{path()}/operations", json=create())
    first = await anna.get(path())

    same = await anna.get(path(), headers={"If-None-Match": first.headers["etag"]})
    await anna.patch(
        f"{path()}/operations",
        json=change({"type": "set_field", "field": "timeline", "value": 1}),
    )
    other = await anna.get(path(), headers={"If-None-Match": first.headers["etag"]})

    assert (same.status_code, same.content) == (304, b"")
    assert (other.status_code, other.json()["timeline"]) == (200, 1)


async def test_who_has_a_revision_gets_what_happened_since(anna: httpx.AsyncClient) -> None:
    """CV21"""
    await anna.patch(f"{path()}/operations", json=create())
    old = await anna.get(path())
    node = {"type": "create_node", "node": {"id": "a", "type": "text"}}
    await anna.patch(f"{path()}/operations", json=change(node, mutation_id="m"))

    since = await anna.get(f"{path()}/changes", params={"after": 1})
    now = await anna.get(path())
    beyond = await anna.get(f"{path()}/changes", params={"after": 9})
    odd = await anna.get(f"{path()}/changes", params={"after": -1})
    await anna.delete(path())
    gone = await anna.get(f"{path()}/changes", params={"after": 1})
    again = create()
    again["mutationId"] = "again"
    await anna.patch(f"{path()}/operations", json=again)
    anew = await anna.get(
        f"{path()}/changes", params={"after": 1}, headers={"If-None-Match": old.headers["etag"]}
    )

    assert since.headers["etag"] == now.headers["etag"]
    (entry,) = since.json()["changes"]
    assert entry.pop("at").endswith("Z")
    assert entry == {"revision": 2, "mutationId": "m", "operations": [node]}
    assert (since.json()["revision"], since.json()["contentHash"]) == (
        2,
        now.json()["contentHash"],
    )
    assert_problem(beyond, 410, "changes_expired")
    assert_problem(odd, 422, "invalid_argument")
    assert_problem(gone, 404, "not_found")
    assert_problem(anew, 410, "changes_expired")


async def test_a_lease_goes_through_its_life(anna: httpx.AsyncClient) -> None:
    """CV18"""
    await anna.patch(
        f"{path()}/operations",
        json=create(nodes=[{"id": "a", "type": "text", "metadata": {"prompt": "x"}}]),
    )

    async def lease(action: str, session: str, **more: Any) -> httpx.Response:
        body = {"action": action, "nodeId": "a", "sessionId": session, **more}
        return await anna.post(f"{path()}/edit-lease", json=body)

    held = await lease("acquire", "desk")
    other = await lease("acquire", "couch")
    token = held.json()["token"]
    renewed = await lease("renew", "desk", token=token)
    status = (await anna.get(f"{path()}/sync-status")).json()
    write = {
        "type": "patch_node",
        "id": "a",
        "patch": {"metadata.prompt": "y"},
        "before": {"metadata.prompt": "x"},
    }
    refused = await anna.patch(f"{path()}/operations", json=change(write))
    proof = {"nodeId": "a", "sessionId": "desk", "token": token}
    written = await anna.patch(
        f"{path()}/operations", json={**change(write), "editProofs": [proof]}
    )
    released = [await lease("release", "desk", token=token) for _ in range(2)]
    missing = await anna.post(
        f"{path()}/edit-lease", json={"action": "acquire", "nodeId": "b", "sessionId": "s"}
    )
    tokenless = await lease("renew", "desk")
    odd = await lease("steal", "desk")

    assert held.json().keys() == {"token", "expiresAt", "serverTime"}
    conflict = assert_problem(other, 409, "canvas_edit_lease_conflict")
    assert conflict["holder"] == {"sessionId": "desk", "expiresAt": held.json()["expiresAt"]}
    assert renewed.json()["token"] == token
    assert [(it["nodeId"], it["sessionId"]) for it in status["leases"]] == [("a", "desk")]
    assert status["agent"] is None
    assert_problem(refused, 409, "canvas_edit_lease_conflict")
    assert written.status_code == 200
    assert [answer.status_code for answer in released] == [200, 200]
    assert_problem(missing, 409, "canvas_object_missing")
    assert_problem(tokenless, 422, "invalid_argument")
    assert_problem(odd, 422, "invalid_argument")


async def test_media_that_are_missing_are_listed(anna: httpx.AsyncClient) -> None:
    """CV20"""
    node = {"id": "a", "type": "image", "metadata": {"storageKey": "resource:rs_gone"}}

    answer = await anna.patch(f"{path()}/operations", json=create(nodes=[node]))

    problem = assert_problem(answer, 400, "canvas_media_assets_pending")
    assert problem["missing"] == [{"nodeId": "a", "path": "metadata", "resourceId": "rs_gone"}]


async def test_a_large_canvas_travels_compressed(anna: httpx.AsyncClient) -> None:
    nodes = [
        {"id": f"n{i}", "type": "text", "metadata": {"content": "x" * 500}} for i in range(300)
    ]
    await anna.patch(f"{path()}/operations", json=create(nodes=nodes))
    request = anna.build_request("GET", path(), headers={"Accept-Encoding": "gzip"})

    answer = await anna.send(request, stream=True)
    raw = b"".join([chunk async for chunk in answer.aiter_raw()])

    assert answer.headers["content-encoding"] == "gzip"
    assert len(raw) < 50_000
    assert json.loads(gzip.decompress(raw))["nodes"] == nodes


async def test_somebody_elses_things_are_none(
    anna: httpx.AsyncClient, bert: httpx.AsyncClient
) -> None:
    """CV13"""
    await anna.patch(f"{path()}/operations", json=create())
    resource = (await upload(anna, PNG.getvalue(), "image")).json()["id"]
    await anna.put("/api/assets/a1", json={"kind": "image", "title": "Mine", "version": 0})

    reads = [
        await bert.get(path()),
        await bert.get(f"{path()}/sync-status"),
        await bert.delete(path()),
        await bert.get(f"/api/resources/{resource}"),
        await bert.get(f"/api/resources/{resource}/file"),
        await bert.get("/api/assets/a1"),
        await bert.delete("/api/assets/a1"),
    ]
    edit = await bert.patch(
        f"{path()}/operations",
        json=change({"type": "create_node", "node": {"id": "x", "type": "t"}}),
    )
    stolen = await bert.put(
        "/api/assets/b1",
        json={"kind": "image", "title": "Stolen", "version": 0, "resourceId": resource},
    )
    none = await bert.get(path("never"))

    for answer in reads:
        assert_problem(answer, 404, "not_found")
    assert_problem(edit, 409, "canvas_object_missing")
    assert_problem(stolen, 422, "invalid_argument")
    assert reads[0].json()["detail"] == none.json()["detail"]
    assert (await anna.get(path())).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"\xff\xfe",
        b'{"mutationId":"a","mutationId":"b"}',
        b'{"mutationId":"\\ud800"}',
        b'{"mutationId":"\\u0000"}',
        b'{"baseRevision":NaN}',
        b'{"baseRevision":-Infinity}',
        b'{"baseRevision":1e999}',
        b'{"baseRevision":' + b"9" * 5000 + b"}",
        b"[" * 5000,
        b"[" * 200 + b"]" * 200,
    ],
)
async def test_malformed_json_is_a_problem_document(anna: httpx.AsyncClient, body: bytes) -> None:
    """GW6"""
    answer = await anna.patch(
        f"{path()}/operations", content=body, headers={"Content-Type": "application/json"}
    )

    assert_problem(answer, 400, "invalid_json")


@pytest.mark.parametrize(
    ("operation", "where"),
    [
        (7, None),
        ({}, "type"),
        ({"type": "explode"}, "type"),
        ({"type": ["create_node"]}, "type"),
        ({"type": "create_node"}, "node"),
        ({"type": "create_node", "node": [], "x": 1}, "x"),
        ({"type": "create_node", "node": []}, "node"),
        ({"type": "patch_node", "id": 3, "patch": {}}, "id"),
        ({"type": "patch_node", "id": "a", "patch": []}, "patch"),
        ({"type": "set_field", "field": "owner", "value": 1}, "owner"),
        ({"type": "create_canvas", "canvas": {"title": " "}}, "title"),
        ({"type": "create_canvas", "canvas": {"title": "x", "nodes": 3}}, "nodes"),
    ],
)
async def test_a_malformed_operation_is_told_with_its_place(
    anna: httpx.AsyncClient, operation: Any, where: str | None
) -> None:
    """CV2"""
    fine = {"type": "create_canvas", "canvas": {"title": "x"}}

    answer = await anna.patch(f"{path()}/operations", json=change(fine, operation))

    problem = assert_problem(answer, 400, "invalid_operation")
    assert problem["operationIndex"] == 1
    assert problem.get("path") == where
    assert_problem(await anna.get(path()), 404, "not_found")


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (
            {"type": "patch_node", "id": "n", "patch": {"灯" * 50_000 + "..": 1}},
            "invalid_operation",
        ),
        ({"type": "set_field", "field": "x" * 100_000, "value": 1}, "invalid_operation"),
        (
            {
                "type": "create_node",
                "node": {"id": "a", "type": "t", "k" * 50_000: "data:image/a,"},
            },
            "inline_media",
        ),
    ],
)
async def test_however_long_a_name_is_the_answer_says_what_is_wrong(
    anna: httpx.AsyncClient, operation: Any, reason: str
) -> None:
    """GW5"""
    answer = await anna.patch(f"{path()}/operations", json=change(operation))

    problem = assert_problem(answer, 400, reason)
    assert len(problem["path"]) < 5_000


async def test_a_body_that_is_too_long_is_refused(anna: httpx.AsyncClient) -> None:
    """GW7"""
    answer = await anna.post("/api/auth/tokens", json={"name": "x" * 100_000})

    assert_problem(answer, 413, "too_large")


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /", b"x" * 100_000),
        (b"GET / HTTP/1.1\r\nX-One: ", b"x" * 100_000),
        (b"GET / HTTP/1.1\r\n", b"X-Many: one\r\n" * 10_000),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ",
            b"x" * 100_000,
        ),
    ],
)
async def test_a_head_without_end_ends_the_connection(
    address: str, start: bytes, more: bytes
) -> None:
    """GW7"""
    parts = httpx.URL(address)
    reader, writer = await asyncio.open_connection(parts.host, parts.port)
    writer.write(start)

    async def endless() -> None:
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(more)
                await writer.drain()

    sending = asyncio.create_task(endless())
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass
    writer.close()
    await sending


async def test_a_long_head_within_the_limit_is_read(anna: httpx.AsyncClient) -> None:
    """GW7"""
    many = [("X-Many", "x" * 1_000)] * 50

    answers = [
        await anna.post("/api/auth/tokens", json={"name": "x"}, headers=many) for _ in range(2)
    ]

    assert [answer.status_code for answer in answers] == [201, 201]


async def test_a_body_of_another_type_is_refused(anna: httpx.AsyncClient) -> None:
    answer = await anna.post("/api/auth/tokens", data={"name": "x"})

    assert_problem(answer, 415, "unsupported_media_type")


def large(picture_format: str, **options: Any) -> bytes:
    """A picture of more than a MiB."""
    file = io.BytesIO()
    noise = Image.effect_noise((1_400, 1_000), 90).convert("RGB")
    noise.save(file, picture_format, quality=100, **options)
    return file.getvalue()


def with_notes(jpeg: bytes) -> bytes:
    """A JPEG with more than a MiB of notes before its size."""
    note = b"\xff\xe1" + (65_002).to_bytes(2) + b"x" * 65_000
    return jpeg[:2] + 20 * note + jpeg[2:]


def with_two_pictures() -> bytes:
    file = io.BytesIO()
    red, blue = (Image.new("RGB", (20, 10), color) for color in ("red", "blue"))
    red.save(file, "MPO", save_all=True, append_images=[blue])
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "mime_type"),
    [
        (lambda: large("WEBP", lossless=True), "image/webp"),
        (lambda: large("AVIF"), "image/avif"),
        (lambda: with_notes(large("JPEG")), "image/jpeg"),
        (with_two_pictures, "image/jpeg"),
    ],
    ids=["webp", "avif", "jpeg with notes", "two in one"],
)
async def test_a_picture_is_one_however_it_is_written(
    anna: httpx.AsyncClient, content: Callable[[], bytes], mime_type: str
) -> None:
    """CV16"""
    made = await upload(anna, content(), "image")

    assert (made.status_code, made.json()["mimeType"]) == (201, mime_type)
    assert made.json()["width"] in {20, 1_400}


@pytest.mark.parametrize("key", ["", "k" * 201])
async def test_a_key_has_1_to_200_characters(anna: httpx.AsyncClient, key: str) -> None:
    answer = await upload(anna, b"text", "file", **{"Idempotency-Key": key})

    problem = assert_problem(answer, 422, "invalid_argument")
    assert problem["errors"][0]["path"] == "Idempotency-Key"


async def test_a_file_is_read_back_whole_and_in_parts(anna: httpx.AsyncClient) -> None:
    """CV16"""
    content = PNG.getvalue()
    made = (await upload(anna, content, "image")).json()
    where = f"/api/resources/{made['id']}/file"

    whole = await anna.get(where)
    part = await anna.get(where, headers={"Range": "bytes=2-5"})
    tail = await anna.get(where, headers={"Range": "bytes=-3"})
    rest = await anna.get(where, headers={"Range": f"bytes={len(content) - 2}-"})
    beyond = await anna.get(where, headers={"Range": f"bytes={len(content)}-"})
    odd = await anna.get(where, headers={"Range": "lines=1-2"})
    stale = await anna.get(where, headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    known = await anna.get(where, headers={"If-None-Match": whole.headers["etag"]})
    head = await anna.head(where)

    assert (made["mimeType"], made["width"], made["height"]) == ("image/png", 12, 7)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-type"] == "image/png"
    assert whole.headers["content-disposition"] == "inline"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "immutable" in whole.headers["cache-control"]
    assert (part.status_code, part.content) == (206, content[2:6])
    assert part.headers["content-range"] == f"bytes 2-5/{len(content)}"
    assert (tail.content, rest.content) == (content[-3:], content[-2:])
    assert_problem(beyond, 416, "range_not_satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{len(content)}"
    assert (odd.status_code, stale.status_code, known.status_code) == (200, 200, 304)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(content)))


async def test_a_page_in_a_file_never_runs_as_ours(anna: httpx.AsyncClient) -> None:
    """CV16"""
    page = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    made = (await upload(anna, page, "file")).json()

    found = await anna.get(f"/api/resources/{made['id']}/file")

    assert found.headers["content-disposition"] == "attachment"
    assert "sandbox" in found.headers["content-security-policy"]
    assert found.headers["content-type"] == "application/octet-stream"


async def test_a_file_must_be_what_it_is_said_to_be(anna: httpx.AsyncClient) -> None:
    """CV16"""
    answer = await upload(anna, b"not a picture", "image")
    nameless = await anna.post("/api/resources", data={"kind": "image"}, files={})
    broken = await anna.post(
        "/api/resources",
        content=b"--x\r\nnonsense",
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )

    assert assert_problem(answer, 422, "invalid_argument")["errors"][0]["path"] == "kind"
    assert nameless.status_code == 415
    assert_problem(broken, 422, "invalid_argument")


def one_file(parameters: str = "", kind: bytes = b"file") -> dict[str, Any]:
    """A multipart body by hand, and its headers."""
    lines = [
        b"--x",
        b'Content-Disposition: form-data; name="file"; filename="a"',
        b"",
        b"content",
        b"--x",
        b'Content-Disposition: form-data; name="kind"',
        b"",
        kind,
        b"--x--",
        b"",
    ]
    content_type = f"Multipart/Form-Data; boundary=x{parameters}"
    return {"content": b"\r\n".join(lines), "headers": {"Content-Type": content_type}}


async def test_a_form_is_read_as_utf_8_and_no_other_way(anna: httpx.AsyncClient) -> None:
    """GW5"""
    plain = await anna.post("/api/resources", **one_file())
    said = await anna.post("/api/resources", **one_file("; charset=UTF-8"))
    odd = [
        await anna.post("/api/resources", **one_file("; charset=undefined")),
        await anna.post("/api/resources", **one_file("; charset=utf-7", kind=b"+2AA-")),
    ]

    assert (plain.status_code, said.status_code) == (201, 201)
    for answer in odd:
        assert_problem(answer, 415, "unsupported_media_type")


async def test_a_file_that_does_not_come_is_not_waited_for(
    anna: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GW7"""
    monkeypatch.setattr("gateway.routes.resources.UPLOAD_SECONDS", 0.05)
    over = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"--x\r\n"
        await over.wait()

    sending = asyncio.create_task(
        anna.post("/api/resources", **{**one_file(), "content": slow()}, timeout=10)
    )
    await asyncio.wait([sending], timeout=5)
    over.set()

    assert_problem(await sending, 408, "request_timeout")


async def test_the_same_key_uploads_once(anna: httpx.AsyncClient) -> None:
    """CV16"""
    key = {"Idempotency-Key": secrets.token_hex(4)}
    answers = [await upload(anna, b"one", "file", **key) for _ in range(2)]
    other = await upload(anna, b"two", "file", **key)

    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert_problem(other, 409, "idempotency_key_reused")


async def test_an_upload_that_is_too_long_is_refused_and_costs_nothing(
    anna: httpx.AsyncClient,
) -> None:
    """GW7"""

    async def endless() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(40):
            yield b"0" * 1024 * 1024

    answer = await anna.post(
        "/api/resources",
        content=endless(),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )

    assert_problem(answer, 413, "too_large")


async def test_an_asset_is_written_on_the_version_that_was_read(anna: httpx.AsyncClient) -> None:
    """CV17"""
    draft = {"kind": "image", "category": "hero", "title": "One", "version": 0}
    first = await anna.put("/api/assets/a1", json=draft)
    repeated = await anna.put("/api/assets/a1", json=draft)
    stale = await anna.put("/api/assets/a1", json={**draft, "title": "Other"})
    second = await anna.put("/api/assets/a1", json={**draft, "title": "Two", "version": 1})

    assert (first.json()["version"], second.json()["version"]) == (1, 2)
    assert repeated.json() == first.json()
    assert assert_problem(stale, 409, "asset_version_conflict")["version"] == 1
    assert [found["title"] for found in (await anna.get("/api/assets")).json()["assets"]] == ["Two"]
    assert (await anna.delete("/api/assets/a1")).status_code == 204
    assert_problem(await anna.get("/api/assets/a1"), 404, "not_found")


async def test_readiness_names_every_service_and_store(address: str) -> None:
    """GW8"""
    async with httpx.AsyncClient(base_url=address) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    checks = answer.json()["checks"]
    assert {name for name in checks if checks[name] == "ok"} == {"postgres", "objects", "canvas"}
    assert checks.keys() >= {"tasks", "generation", "presence"}


async def test_a_service_that_is_away_is_told_as_such(anna: httpx.AsyncClient) -> None:
    """GW5"""
    answer = await anna.get("/api/wallet")

    assert_problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("method", "where", "status", "reason"),
    [
        ("GET", "/api/nothing", 404, "not_found"),
        ("PUT", "/api/me", 405, "method_not_allowed"),
        ("TRACE", "/healthz", 405, "method_not_allowed"),
        ("GET", "/api/canvas-projects?pageSize=many", 422, "invalid_argument"),
        ("GET", "/api/canvas-projects?pageSize=201", 422, "invalid_argument"),
        ("GET", "/api/canvas-projects?pageSize=3000000000", 422, "invalid_argument"),
        ("GET", "/api/canvas-projects?pageToken=x", 422, "invalid_argument"),
        # A time of the year 150,000.
        (
            "GET",
            "/api/canvas-projects?pageToken=WzQ2MTE2ODYwMTg0MjczODc5MDQsMV0",
            422,
            "invalid_argument",
        ),
        ("GET", "/api/canvas-projects?page=1", 422, "invalid_argument"),
        ("GET", "/api/canvas-projects?pageSize=1&pageSize=2", 422, "invalid_argument"),
        ("GET", "/api/canvas-projects/%00", 422, "invalid_argument"),
        ("GET", "/api/canvas-projects/a%2Fb", 404, "not_found"),
        ("GET", "/static/../app.py", 404, "not_found"),
        ("GET", "/static/%2e%2e%2fapp.py", 404, "not_found"),
    ],
)
async def test_what_is_not_there_is_a_problem_document(
    anna: httpx.AsyncClient, method: str, where: str, status: int, reason: str
) -> None:
    """GW5"""
    assert_problem(await anna.request(method, where), status, reason)


async def test_a_request_id_is_kept_if_it_is_one(anna: httpx.AsyncClient) -> None:
    """GW5"""
    ours = await anna.get("/api/me", headers={"X-Request-Id": "abc-1"})
    odd = await anna.get("/api/me", headers={"X-Request-Id": "<script>"})

    assert ours.headers["x-request-id"] == "abc-1"
    assert "<" not in odd.headers["x-request-id"]


@pytest.mark.parametrize("trace", [b"\xe9", b"a\tb", b"00-" + b"a" * 40_000, b"-"])
async def test_a_trace_context_that_is_none_is_not_passed_on(
    anna: httpx.AsyncClient, trace: bytes
) -> None:
    """GW5"""
    answer = await anna.get("/api/canvas-projects", headers=[(b"traceparent", trace)])

    assert answer.status_code == 200


async def test_logs_do_not_tell_whose_request_it_was(anna: httpx.AsyncClient) -> None:
    with capture_logs() as lines:
        me = (await anna.get("/api/me")).json()
        await anna.get("/api/canvas-projects")

    accounts = {line["account"] for line in lines if line["event"] == "request"}
    assert len(accounts) == 1
    assert me["id"] not in str(lines)
    assert me["email"] not in str(lines)


async def test_the_openapi_document_is_valid_and_names_what_is_served(address: str) -> None:
    """GW9"""
    async with httpx.AsyncClient(base_url=address) as client:
        document = (await client.get("/openapi.json")).json()

    validate(document)
    assert "/api/canvas-projects/{canvas_id}/operations" in document["paths"]
    told = {
        reason.strip("`")
        for operations in document["paths"].values()
        for operation in operations.values()
        for status, response in operation["responses"].items()
        if (int(status) >= 400 and status != "503") or "`" in response["description"]
        for reason in response["description"].split(", ")
        if reason.startswith("`")
    }
    assert told <= REASONS.keys()


async def test_every_answer_to_an_odd_request_is_documented(anna: httpx.AsyncClient) -> None:
    """GW9"""
    paths = (await anna.get("/openapi.json")).json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            where = re.sub(r"\{\w+\}", "%00", path)
            for url in (f"{where}?nonsense=1", where):
                answer = await anna.request(method, url, headers={"Idempotency-Key": "k" * 201})

                assert str(answer.status_code) in operation["responses"], (method, url)


async def test_what_is_open_to_anyone_works_without_the_database(objects_url: str) -> None:
    """GW8"""
    nowhere = "postgresql://127.0.0.1:9/gesso"
    cookies = {"gesso_session": "whoever"}
    async with (
        gateway(gateway_settings(nowhere, objects_url, {})) as address,
        httpx.AsyncClient(base_url=address, cookies=cookies, timeout=10) as client,
    ):
        alive = await client.get("/healthz")
        ready = await client.get("/readyz")
        me = await client.get("/api/me")

    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
    assert ready.json()["checks"]["objects"] == "ok"
    assert_problem(me, 503, "unavailable")


@pytest.mark.parametrize("where", ["/", "/docs", "/docs/problems", "/static/gesso.css"])
async def test_pages_are_served_with_a_strict_policy(address: str, where: str) -> None:
    async with httpx.AsyncClient(base_url=address) as client:
        answer = await client.get(where)

    assert answer.status_code == 200
    if where.startswith("/static"):
        assert answer.headers["content-type"].startswith("text/css")
    else:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
