"""Clients that are slow or say too much, on raw sockets, before a gateway alone."""

import asyncio
import itertools
import string
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway import dispatch, heads
from gateway.routes import resources
from tests.support.services import ORIGIN, browser, gateway, gateway_settings

PATIENCE_SECONDS = 4
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="session")
async def address(shared_database: str, objects_url: str) -> AsyncIterator[str]:
    """A gateway; the services are away."""
    async with gateway(gateway_settings(shared_database, objects_url, {})) as found:
        yield found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that waits for a head as long as it takes to notice it."""
    monkeypatch.setattr(heads, "HEAD_SECONDS", 0.05)


async def answer_to(address: str, *parts: bytes) -> bytes:
    """All that comes back for these parts, until the other end closes."""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"G",),
        (HEAD,),
        (HEAD + b"\r\n" + HEAD,),
    ],
    ids=["silence", "a letter", "half a head", "half a second head"],
)
async def test_a_head_that_does_not_come_whole_ends_the_connection(
    address: str, parts: tuple[bytes, ...]
) -> None:
    """GW7"""
    answer = await answer_to(address, *parts)

    assert answer.count(b" 200 OK") == b"".join(parts).count(b"\r\n\r\n")


@pytest.mark.usefixtures("impatient")
async def test_an_empty_line_after_an_answer_does_not_keep_the_connection(address: str) -> None:
    """GW7"""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(HEAD + b"\r\n")
    await reader.readuntil(b'"ok"}')
    writer.write(b"\r\n")

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_is_answered_is_not_late(address: str) -> None:
    """GW7"""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = b'{"email":"a@example.com","password":"not it"}'
    writer.write(
        b"POST /api/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await reader.read(1)
    writer.write(body)

    assert (await reader.readline()).split()[1] == b"401"
    writer.close()


@pytest.mark.parametrize(
    ("where", "media_type"),
    [
        ("/api/auth/tokens", "application/json"),
        ("/api/resources", "multipart/form-data; boundary=x"),
    ],
)
async def test_a_body_that_trickles_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch, where: str, media_type: str
) -> None:
    """GW7"""
    monkeypatch.setattr(dispatch, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(resources, "UPLOAD_SECONDS", 0.05)
    async with browser(address) as anna:
        cookie = f"gesso_session={anna.cookies['gesso_session']}"
    head = (
        f"POST {where} HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\nCookie: {cookie}\r\n"
        f"Connection: close\r\nContent-Type: {media_type}\r\nContent-Length: 9\r\n\r\n"
    )

    answer = await answer_to(address, head.encode(), b"--x")

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"reason":"request_timeout"' in answer


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD, b"X: " + b"a" * 1_000_000),
        (HEAD, b"X: a\r\n" * 200_000),
        (b"GET /" + b"a" * 1_000_000,),
        (HEAD + b"\r\n" + HEAD, b"X: " + b"a" * 1_000_000),
    ],
    ids=["one header", "many headers", "the path", "a second head"],
)
async def test_a_head_that_is_too_long_is_refused(address: str, parts: tuple[bytes, ...]) -> None:
    """GW7"""
    answer = await answer_to(address, *parts)

    assert b" 431 " in answer or not answer
    async with httpx.AsyncClient(base_url=address) as other:
        assert (await other.get("/healthz")).status_code == 200


async def test_a_query_of_many_names_holds_nobody_up(address: str) -> None:
    triples = itertools.product(string.ascii_letters, repeat=3)
    names = "&".join("".join(triple) for triple in itertools.islice(triples, 16_000))

    async with httpx.AsyncClient(base_url=address) as client:
        answer = await client.get(f"/healthz?{names}")

    assert answer.status_code == 422
    # Counted once for each name it would be more than four.
    assert answer.elapsed.total_seconds() < 3
