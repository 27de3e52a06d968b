"""Requests that wait for one canvas share a transaction (CV24)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from servicekit.client import Client
from servicekit.errors import Conflict, Failure, TooMany
from tests.support.canvas import Window, create_canvas, create_node, node, patch_node
from tests.support.services import canvas_service, canvas_settings, new_account


@asynccontextmanager
async def held_up(
    database: str, window: Window, arrived: list[str], requests: int
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Somebody else has the canvas inside the block, so that requests gather behind it.

    Yields what waits until so many of them did; the block is not left before.
    """
    connection = await asyncpg.connect(database)
    already = len(arrived)

    async def gathered() -> None:
        async with asyncio.timeout(20):
            while len(arrived) < already + requests or not await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ):
                await asyncio.sleep(0.01)

    async with connection.transaction():
        await connection.execute(
            "SELECT FROM canvas.canvas WHERE account_id = $1 FOR UPDATE", window.behalf.account_id
        )
        yield gathered
        await gathered()
    await connection.close()


async def transactions(database: str, window: Window) -> int:
    """In how many transactions the changes of the account's canvas were committed."""
    connection = await asyncpg.connect(database)
    count: int = await connection.fetchval(
        "SELECT count(DISTINCT change.xmin::text) FROM canvas.change AS change"
        " JOIN canvas.canvas AS canvas ON canvas.key = change.canvas_key"
        " WHERE canvas.account_id = $1",
        window.behalf.account_id,
    )
    await connection.close()
    return count


async def test_requests_that_wait_share_a_transaction_and_fail_alone(
    canvas: Client, shared_database: str, arrived: list[str]
) -> None:
    """CV24, CV10"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas(nodes=[node("a", prompt="x")]))
    async with held_up(shared_database, window, arrived, 24):
        sends = [
            asyncio.create_task(window.apply(create_node(node(f"n{number}"))))
            for number in range(20)
        ]
        stale = asyncio.create_task(window.apply(patch_node("a", {"title": "y"}, {"title": "z"})))
        twice = [
            asyncio.create_task(window.apply(create_node(node("once")), mutation_id="once"))
            for _ in range(2)
        ]
        patch = patch_node("a", {"metadata.prompt": "y"}, {"metadata.prompt": "x"})
        after = asyncio.create_task(window.apply(patch))
    answers = await asyncio.gather(*sends)
    with pytest.raises(Conflict):
        await stale
    replays = sorted(answer.replayed for answer in await asyncio.gather(*twice))
    await after
    found = await window.read()

    assert sorted(answer.revision for answer in answers) == sorted(
        {answer.revision for answer in answers}
    )
    assert replays == [False, True]
    assert (found["revision"], len(found["nodes"])) == (23, 22)
    # The creation, the one that came first, and those that came meanwhile.
    assert await transactions(shared_database, window) <= 4


async def test_a_limit_is_kept_by_each_of_those_that_wait(
    shared_database: str, objects_url: str, arrived: list[str]
) -> None:
    """CV24, CV9"""
    settings = canvas_settings(shared_database, objects_url, max_json_bytes=6_000)
    async with canvas_service(settings) as canvas:
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        async with held_up(shared_database, window, arrived, 10):
            sends = [
                asyncio.create_task(window.apply(create_node(node(f"n{number}", text="x" * 1_000))))
                for number in range(10)
            ]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        found = await window.read()

    refused = [answer for answer in answers if isinstance(answer, Failure)]
    assert len(found["nodes"]) == 5
    assert len(refused) == 5
    assert all(isinstance(answer, TooMany) for answer in refused)
    assert found["revision"] == 6


async def test_who_has_gone_does_not_hold_up_the_others(
    canvas: Client, shared_database: str, arrived: list[str]
) -> None:
    """CV24"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with held_up(shared_database, window, arrived, 6) as gathered:
        sends = [
            asyncio.create_task(
                window.apply(create_node(node(f"n{number}")), mutation_id=f"m{number}")
            )
            for number in range(6)
        ]
        await gathered()
        for send in sends[::2]:
            send.cancel()
    answers = await asyncio.gather(*sends, return_exceptions=True)
    again = [
        await window.apply(create_node(node(f"n{number}")), mutation_id=f"m{number}")
        for number in range(6)
    ]
    found = await window.read()

    assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == 3
    assert len(again) == 6
    assert (found["revision"], len(found["nodes"])) == (7, 6)
