"""The realtime channel through a real gateway, canvas and presence."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import asyncpg
import httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.support.services import browser
from tests.support.windows import change, close_code, create, frame, presence, realtime, window


@pytest.fixture(scope="session")
async def address(shared_database: str, objects_url: str) -> AsyncIterator[str]:
    async with realtime(shared_database, objects_url, realtime_recheck_seconds=0.05) as found:
        yield found


@pytest.fixture
async def anna(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(address) as client:
        await create(client, "c")
        yield client


async def test_two_windows_see_each_other_come_move_and_go(anna: httpx.AsyncClient) -> None:
    async with window(anna) as first:
        one = await frame(first, "welcome")
        async with window(anna) as second:
            two = await frame(second, "welcome")
            joined = await frame(first, "peer")
            await second.send(presence(1.5))
            moved = await frame(first, "peer")
        left = await frame(first, "leave")

    assert (one["number"], two["number"]) == (1, 2)
    assert [peer["id"] for peer in two["peers"]] == [one["selfId"]]
    assert one["revision"] == 1
    assert joined["id"] == moved["id"] == left["id"] == two["selfId"]
    assert moved["cursor"] == {"x": 1.5, "y": 0}


async def test_what_a_window_says_before_its_welcome_counts(anna: httpx.AsyncClient) -> None:
    async with window(anna) as first:
        await frame(first, "welcome")
        async with window(anna) as second:
            await second.send(presence(1))
            await second.send(presence(2))
            cursor = None
            while cursor != {"x": 2, "y": 0}:
                cursor = (await frame(first, "peer"))["cursor"]


async def test_a_window_that_reads_late_sees_nothing_go_back(anna: httpx.AsyncClient) -> None:
    """PR8"""
    drag = [{"id": f"{n:0150}", "x": n, "y": 0, "width": 1, "height": 1} for n in range(50)]
    async with window(anna) as first, window(anna, max_queue=1) as second:
        await frame(first, "welcome")
        for number in range(400):
            await first.send(presence(number, drag=drag))
        await first.send(presence(-1))
        seen: list[Any] = []
        async with asyncio.timeout(20):
            while not seen or seen[-1] != -1:
                found = json.loads(await second.recv())
                peers = found.get("peers", [found] if found["type"] == "peer" else [])
                seen += [peer["cursor"]["x"] for peer in peers if peer["cursor"] is not None]

    rising = seen[:-1]
    assert rising == sorted(rising)


async def test_every_window_hears_of_a_committed_write(anna: httpx.AsyncClient) -> None:
    async with window(anna) as first, window(anna) as second:
        await frame(first, "welcome")
        await frame(second, "welcome")

        await change(anna, "c", {"type": "create_node", "node": {"id": "a", "type": "text"}})

        heard = [await frame(socket, "invalidate") for socket in (first, second)]
    assert [found["revision"] for found in heard] == [2, 2]


async def test_a_subprotocol_is_agreed_on_if_it_is_ours(anna: httpx.AsyncClient) -> None:
    async with window(anna, subprotocols=["other", "gesso.v1"]) as socket:
        assert socket.subprotocol == "gesso.v1"


async def test_nobody_signed_in_is_told_so(address: str, anna: httpx.AsyncClient) -> None:
    """GW10"""
    async with window(anna, additional_headers={}) as socket:
        assert await close_code(socket) == 4401


@pytest.mark.parametrize("origin", ["http://evil.example", None])
async def test_a_foreign_page_is_told_so(anna: httpx.AsyncClient, origin: str | None) -> None:
    """GW10"""
    async with window(anna, origin=origin) as socket:
        assert await close_code(socket) == 4403


async def test_other_credentials_do_not_let_a_foreign_page_use_the_cookie(
    anna: httpx.AsyncClient,
) -> None:
    """GW10"""
    cookies = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
    basic = {"Cookie": cookies, "Authorization": "Basic YW5uYTp4"}

    async with window(anna, additional_headers=basic, origin="http://evil.example") as socket:
        assert await close_code(socket) == 4403


async def test_a_window_leaves_the_session_for_a_request_to_extend(
    shared_database: str, anna: httpx.AsyncClient
) -> None:
    """GW1"""
    secret = hashlib.sha256(anna.cookies["gesso_session"].encode()).digest()
    connection = await asyncpg.connect(shared_database)
    await connection.execute(
        "UPDATE gateway.session SET expires_at = now() + interval '1 day' WHERE secret_hash = $1",
        secret,
    )
    await connection.close()
    async with window(anna) as socket:
        await frame(socket, "welcome")
        answers = [await anna.get("/api/me") for _ in range(2)]

    assert "Max-Age=2592000" in answers[0].headers["set-cookie"]
    assert "set-cookie" not in answers[1].headers


async def test_a_script_connects_with_a_token_and_no_origin(anna: httpx.AsyncClient) -> None:
    """GW10"""
    made = (await anna.post("/api/auth/tokens", json={"name": "script"})).json()
    bearer = {"Authorization": f"Bearer {made['token']}"}

    async with window(anna, additional_headers=bearer, origin=None) as socket:
        assert (await frame(socket, "welcome"))["number"] == 1


async def test_a_canvas_that_is_not_there_or_not_theirs_is_none(
    address: str, anna: httpx.AsyncClient
) -> None:
    """GW10"""
    async with browser(address) as bert:
        async with window(bert, "c") as socket:
            somebody_elses = await close_code(socket)
        async with window(bert, "never") as socket:
            nobodys = await close_code(socket)
        async with window(bert, "%00") as socket:
            of_no_id = await close_code(socket)

    assert (somebody_elses, nobodys, of_no_id) == (4404, 4404, 4404)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"type":"other"}',
        presence(1e9),
        # What is said of it is longer than a close frame.
        json.dumps({"灯" * 80: 1}, ensure_ascii=False)[:-1] + f', "{"灯" * 80}": 2}}',
    ],
)
async def test_a_malformed_frame_ends_the_window(anna: httpx.AsyncClient, text: str) -> None:
    """GW10"""
    async with window(anna) as socket:
        await frame(socket, "welcome")
        await socket.send(text)

        assert await close_code(socket) == 4400


@pytest.mark.parametrize(("message", "is_text"), [(b"{}", False), (b'{"more":"\xff"}', True)])
async def test_what_is_no_text_ends_the_window(
    anna: httpx.AsyncClient, message: bytes, *, is_text: bool
) -> None:
    """GW10 PR12"""
    async with window(anna) as socket, window(anna) as early:
        await early.send(message, text=is_text)
        await frame(socket, "welcome")
        await socket.send(message, text=is_text)

        assert [await close_code(each) for each in (socket, early)] == [4400, 4400]


@pytest.mark.parametrize("over", [0, 1, 50_000])
@pytest.mark.parametrize("parts", [1, 3])
async def test_a_frame_has_at_most_16_kibibytes(
    anna: httpx.AsyncClient, over: int, parts: int
) -> None:
    """PR8 PR12"""
    empty = presence(7, more="")
    text = presence(7, more="x" * (16 * 1024 + over - len(empty)))
    size = len(text) // parts + 1
    first_piece, *pieces = [text[start : start + size] for start in range(0, len(text), size)]
    async with window(anna) as first:
        await frame(first, "welcome")
        async with window(anna) as second:
            await frame(first, "peer")
            with suppress(ConnectionClosed):
                # Between the parts are some of nothing.
                await second.send([first_piece, "", "", *pieces] if pieces else text)
            told = await frame(first, "leave" if over else "peer")
            code = await close_code(second) if over else None

    assert told.get("cursor") == (None if over else {"x": 7, "y": 0})
    assert code == (4400 if over else None)


async def test_a_frame_that_says_that_it_is_too_large_is_not_waited_for(
    anna: httpx.AsyncClient,
) -> None:
    """PR8 PR12"""
    async with window(anna) as socket:
        await frame(socket, "welcome")
        # A text of a terabyte, masked with zeros, of which little comes.
        socket.transport.write(b"\x81\xff" + (2**40).to_bytes(8) + bytes(4) + b"x" * 1000)

        assert await close_code(socket) == 4400


async def test_signing_out_and_deleting_end_open_windows(
    address: str, anna: httpx.AsyncClient
) -> None:
    """GW10"""
    async with browser(address) as bert:
        await create(bert, "d")
        async with window(bert, "d") as deleted, window(anna) as signed_out:
            await frame(deleted, "welcome")
            await frame(signed_out, "welcome")
            await bert.delete("/api/canvas-projects/d")
            await anna.post("/api/auth/logout")

            codes = [await close_code(deleted), await close_code(signed_out)]

    assert codes == [4404, 4401]


async def test_a_canvas_created_anew_is_another_room(
    shared_database: str, objects_url: str
) -> None:
    """PR18"""
    async with realtime(shared_database, objects_url) as address, browser(address) as client:
        await create(client, "c")
        async with window(client) as before:
            await frame(before, "welcome")
            await change(
                client,
                "c",
                {"type": "set_field", "field": "title", "value": "T", "beforeValue": "A canvas"},
            )
            assert (await frame(before, "invalidate"))["revision"] == 2

            await client.delete("/api/canvas-projects/c")
            code = await close_code(before)
            await create(client, "c")
            async with window(client) as after:
                welcome = await frame(after, "welcome")
                await change(
                    client,
                    "c",
                    {
                        "type": "set_field",
                        "field": "title",
                        "value": "T",
                        "beforeValue": "A canvas",
                    },
                )
                news = await frame(after, "invalidate")

    assert code == 4404
    assert (welcome["number"], welcome["revision"]) == (1, 1)
    assert (news["baseRevision"], news["revision"]) == (1, 2)


async def test_a_gateway_that_goes_away_says_so(shared_database: str, objects_url: str) -> None:
    """GW10"""
    async with AsyncExitStack() as windows:
        async with (
            realtime(shared_database, objects_url, drain_seconds=10) as address,
            browser(address) as client,
        ):
            await create(client, "c")
            socket = await windows.enter_async_context(window(client))
            await frame(socket, "welcome")

        assert await close_code(socket) == 1001


async def test_windows_are_sent_away_one_after_another(
    shared_database: str, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PR19"""
    monkeypatch.setattr("gateway.routes.realtime.SPREAD_SECONDS", 0.6)
    loop = asyncio.get_running_loop()

    async def ended(socket: ClientConnection) -> tuple[int, float]:
        return await close_code(socket), loop.time()

    async with AsyncExitStack() as windows:
        async with (
            realtime(shared_database, objects_url, drain_seconds=10) as address,
            browser(address) as client,
        ):
            await create(client, "c")
            sockets = [await windows.enter_async_context(window(client)) for _ in range(30)]
            for socket in sockets:
                await frame(socket, "welcome")
            ends = [asyncio.create_task(ended(socket)) for socket in sockets]
        codes, times = zip(*[await end for end in ends], strict=True)

    assert set(codes) == {1001}
    # No third of them went within a sixth of the time.
    first, *_, last = sorted(times)
    assert last - first > 0.5
    assert all(
        after - at > 0.1 for at, after in zip(sorted(times), sorted(times)[10:], strict=False)
    )


async def test_news_that_got_lost_is_found_when_it_is_looked_again(
    shared_database: str, objects_url: str
) -> None:
    """PR10 PR18"""
    async with (
        realtime(
            shared_database, objects_url, tells=False, realtime_recheck_seconds=0.05
        ) as address,
        browser(address) as carl,
    ):
        await create(carl, "c")
        async with window(carl) as socket:
            await frame(socket, "welcome")
            await change(
                carl,
                "c",
                {"type": "set_field", "field": "title", "value": "T", "beforeValue": "A canvas"},
            )
            missed = await frame(socket, "invalidate")
            assert (await carl.delete("/api/canvas-projects/c")).status_code == 204
            await create(carl, "c")
            code = await close_code(socket)

    assert missed == {"type": "invalidate", "revision": 2}
    assert code == 4404


async def test_who_comes_to_a_canvas_made_anew_meets_nobody_of_the_one_before(
    shared_database: str, objects_url: str
) -> None:
    """PR18"""
    async with (
        realtime(shared_database, objects_url, tells=False) as address,
        browser(address) as carl,
    ):
        await create(carl, "c")
        await change(
            carl,
            "c",
            {"type": "set_field", "field": "title", "value": "T", "beforeValue": "A canvas"},
        )
        async with window(carl) as before:
            assert (await frame(before, "welcome"))["revision"] == 2
            assert (await carl.delete("/api/canvas-projects/c")).status_code == 204
            await create(carl, "c")
            async with window(carl) as after:
                welcome = await frame(after, "welcome")
            code = await close_code(before)

    assert (welcome["revision"], welcome["number"], welcome["peers"]) == (1, 1, [])
    assert code == 4404
