"""Canvases that wait share a transaction, and none of them holds up or fails another (CV24)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest
from gesso.canvas.v1 import canvas_pb2 as pb

from servicekit.client import Client
from servicekit.errors import Failure, TooMany, Unavailable
from servicekit.postgres import DatabaseSettings
from tests.support.canvas import Window, create_canvas, create_node, node, remove_node
from tests.support.proxy import cutting_proxy
from tests.support.services import canvas_service, canvas_settings, new_account

# Less than anybody waits for a lock in these tests.
AT_ONCE_SECONDS = 5
PATIENT = {"lock_seconds": 30, "statement_seconds": 30}


async def new_canvases(canvas: Client, count: int) -> list[Window]:
    """Canvases of as many accounts."""
    windows = [Window(canvas, new_account()) for _ in range(count)]
    await asyncio.gather(*(window.apply(create_canvas()) for window in windows))
    return windows


def adding(*windows: Window, node_id: str = "a") -> list[asyncio.Task[pb.ApplyOperationsResponse]]:
    """Sends each canvas a new node, with the node's id as that of the mutation."""
    return [
        asyncio.create_task(window.apply(create_node(node(node_id)), mutation_id=node_id))
        for window in windows
    ]


async def nodes_of(window: Window) -> list[str]:
    """The ids of a canvas's nodes; there was one change for each."""
    found = await window.read()
    ids = [each["id"] for each in found["nodes"]]
    assert found["revision"] == 1 + len(ids)
    return ids


async def have_arrived(arrived: list[str], requests: int) -> None:
    """Waits until as many requests came to a service of this process."""
    async with asyncio.timeout(20):
        while len(arrived) < requests:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def gathering(database: str, arrived: list[str], requests: int) -> AsyncIterator[None]:
    """Nobody reads canvases inside the block, which ends when so many requests wait."""
    connection = await asyncpg.connect(database)
    already = len(arrived)
    async with connection.transaction():
        await connection.execute("LOCK TABLE canvas.canvas")
        yield
        await have_arrived(arrived, already + requests)
    await connection.close()


@asynccontextmanager
async def taken(database: str, table: str, *windows: Window) -> AsyncIterator[None]:
    """Somebody else has rows of a table that belong to the windows' accounts inside the block."""
    connection = await asyncpg.connect(database)
    async with connection.transaction():
        locked = await connection.fetch(
            f"SELECT FROM canvas.{table} WHERE account_id = ANY($1) FOR UPDATE",
            [window.behalf.account_id for window in windows],
        )
        assert len(locked) == len(windows)
        yield
    await connection.close()


async def transactions(database: str, *windows: Window) -> int:
    """In how many transactions the newest changes of canvases were committed."""
    connection = await asyncpg.connect(database)
    count: int = await connection.fetchval(
        "SELECT count(DISTINCT change.xmin::text)"
        "  FROM canvas.canvas JOIN canvas.change AS change"
        "    ON change.canvas_key = canvas.key AND change.revision = canvas.revision"
        " WHERE account_id = ANY($1)",
        [window.behalf.account_id for window in windows],
    )
    await connection.close()
    return count


async def used_bytes(database: str, window: Window) -> tuple[int, int]:
    """The JSON that an account is said to keep, and what its canvases hold."""
    connection = await asyncpg.connect(database)
    row = await connection.fetchrow(
        "SELECT json_bytes, (SELECT sum(size_bytes) FROM canvas.canvas WHERE account_id = $1)::int"
        "  FROM canvas.usage WHERE account_id = $1",
        window.behalf.account_id,
    )
    await connection.close()
    assert row is not None
    return row[0], row[1]


async def test_canvases_that_wait_share_a_transaction(
    canvas: Client, shared_database: str, arrived: list[str]
) -> None:
    """CV24"""
    windows = await new_canvases(canvas, 20)
    async with gathering(shared_database, arrived, 20):
        sends = adding(*windows)
    answers = await asyncio.gather(*sends)

    assert [answer.revision for answer in answers] == [2] * 20
    assert [await nodes_of(window) for window in windows] == [["a"]] * 20
    # One came first, and some while it was late.
    assert await transactions(shared_database, *windows) <= 4


async def test_each_of_those_together_has_its_own_objects(
    canvas: Client, shared_database: str, arrived: list[str]
) -> None:
    """CV24, CV13"""
    windows = await new_canvases(canvas, 8)
    await asyncio.gather(*adding(*windows))
    async with gathering(shared_database, arrived, 8):
        # The same ids on all canvases; every other one loses what the rest keep.
        sends = [
            asyncio.create_task(
                window.apply(
                    *([remove_node(node("a"))] if number % 2 else [create_node(node("b"))])
                )
            )
            for number, window in enumerate(windows)
        ]
    await asyncio.gather(*sends)
    found = [await window.read() for window in windows]

    assert [[each["id"] for each in one["nodes"]] for one in found] == [["a", "b"], []] * 4
    for window in windows:
        kept, held = await used_bytes(shared_database, window)
        assert kept == held


@pytest.mark.parametrize("table", ["canvas", "usage"])
async def test_what_somebody_else_has_holds_up_nobody(
    shared_database: str, objects_url: str, table: str
) -> None:
    """CV24, CV12"""
    database = DatabaseSettings(database_url=shared_database, **PATIENT)
    settings = canvas_settings(shared_database, objects_url, database=database)
    async with canvas_service(settings) as canvas:
        windows = await new_canvases(canvas, 12)
        # More than there are connections for those that wait.
        held, free = windows[:6], windows[6:]
        async with taken(shared_database, table, *held):
            waiting = adding(*held)
            for node_id in ("a", "b", "c"):
                async with asyncio.timeout(AT_ONCE_SECONDS):
                    await asyncio.gather(*adding(*free, node_id=node_id))
        await asyncio.gather(*waiting)

        assert [await nodes_of(window) for window in free] == [["a", "b", "c"]] * 6
        assert [await nodes_of(window) for window in held] == [["a"]] * 6


async def test_who_waited_too_long_fails_alone(shared_database: str, objects_url: str) -> None:
    """CV12, CV24"""
    database = DatabaseSettings(database_url=shared_database, lock_seconds=0.3)
    settings = canvas_settings(shared_database, objects_url, database=database)
    async with canvas_service(settings) as canvas:
        windows = await new_canvases(canvas, 4)
        async with taken(shared_database, "canvas", windows[0]):
            answers = await asyncio.gather(*adding(*windows), return_exceptions=True)
        again = await asyncio.gather(*adding(windows[0]))

    assert isinstance(answers[0], Unavailable)
    assert answers[0].machine_word == "canvas_concurrent_write"
    assert not [answer for answer in answers[1:] if isinstance(answer, BaseException)]
    assert again[0].revision == 2


async def test_an_account_over_its_limit_fails_alone(
    shared_database: str, objects_url: str, arrived: list[str]
) -> None:
    """CV9, CV24"""
    settings = canvas_settings(shared_database, objects_url, max_json_bytes=3_000)
    async with canvas_service(settings) as canvas:
        windows = await new_canvases(canvas, 6)
        full = windows[0]
        async with gathering(shared_database, arrived, 6):
            sends = [
                asyncio.create_task(
                    window.apply(
                        create_node(node("a", text="x" * (5_000 if window is full else 9)))
                    )
                )
                for window in windows
            ]
        answers = await asyncio.gather(*sends, return_exceptions=True)

        assert [isinstance(answer, TooMany) for answer in answers] == [True] + [False] * 5
        assert [await nodes_of(window) for window in windows] == [[]] + [["a"]] * 5


async def test_canvases_of_one_account_share_its_limit(
    shared_database: str, objects_url: str, arrived: list[str]
) -> None:
    """CV9, CV24"""
    settings = canvas_settings(shared_database, objects_url, max_json_bytes=6_000)
    async with canvas_service(settings) as canvas:
        account = new_account()
        windows = [Window(canvas, account, f"c{number}") for number in range(10)]
        await asyncio.gather(*(window.apply(create_canvas()) for window in windows))
        async with gathering(shared_database, arrived, 10):
            sends = [
                asyncio.create_task(window.apply(create_node(node("a", text="x" * 1_000))))
                for window in windows
            ]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        found = [await nodes_of(window) for window in windows]

    refused = [answer for answer in answers if isinstance(answer, Failure)]
    assert all(isinstance(answer, TooMany) for answer in refused)
    assert len(refused) == 5
    assert found.count(["a"]) == 5
    kept, held = await used_bytes(shared_database, windows[0])
    assert kept == held <= 6_000


@pytest.mark.parametrize("answered", [False, True])
async def test_a_connection_cut_under_several_canvases_ends_in_one_application_of_each(
    shared_database: str, objects_url: str, arrived: list[str], answered: bool
) -> None:
    """CV12, CV24"""
    async with cutting_proxy(shared_database) as (proxy, url):
        # With so few nobody helps out.
        database = DatabaseSettings(database_url=url, database_connections=2)
        settings = canvas_settings(url, objects_url, database=database)
        async with canvas_service(settings) as canvas:
            windows = await new_canvases(canvas, 12)
            async with gathering(shared_database, arrived, 12):
                first = adding(windows[0], node_id="first")
                await have_arrived(arrived, 13)
                sends = adding(*windows[1:], node_id="word")
                # In what is written; what is read has the mutation id alone.
                proxy.cut_at(b'"word"', answered=answered)
            await asyncio.gather(*first)
            told = await asyncio.gather(*sends, return_exceptions=True)
            lost = [
                window
                for window, answer in zip(windows[1:], told, strict=True)
                if isinstance(answer, Unavailable)
            ]
            again = await asyncio.gather(*adding(*lost, node_id="word"))
            found = [await nodes_of(window) for window in windows]

    assert proxy.cuts == 1
    assert len(lost) > 1
    assert [answer.replayed for answer in again] == [answered] * len(lost)
    assert found == [["first"]] + [["word"]] * 11


async def test_a_canvas_that_cannot_be_stored_fails_alone(
    database: str, objects_url: str, arrived: list[str]
) -> None:
    """CV24"""
    connection = await asyncpg.connect(database)
    await connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'broken'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON canvas.node FOR EACH ROW"
        " WHEN (NEW.id = 'broken') EXECUTE FUNCTION refuse()"
    )
    await connection.close()
    async with canvas_service(canvas_settings(database, objects_url)) as canvas:
        windows = await new_canvases(canvas, 6)
        async with gathering(database, arrived, 6):
            sends = [*adding(*windows[:3]), *adding(windows[3], node_id="broken")]
            sends += adding(*windows[4:])
        answers = await asyncio.gather(*sends, return_exceptions=True)
        found = [await nodes_of(window) for window in windows]

    assert [isinstance(answer, Exception) for answer in answers] == [
        number == 3 for number in range(6)
    ]
    assert found == [["a"]] * 3 + [[]] + [["a"]] * 2


async def test_processes_that_write_the_same_canvases_agree(
    shared_database: str, objects_url: str
) -> None:
    """CV1, CV9, CV12"""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                canvas_service(canvas_settings(shared_database, objects_url))
            )
            for _ in range(2)
        ]
        accounts = [new_account(), new_account()]
        canvases = [(account, f"c{number}") for account in accounts for number in range(3)]
        for account, canvas_id in canvases:
            await Window(clients[0], account, canvas_id).apply(create_canvas())

        async def work(name: int, window: Window) -> None:
            for number in range(8):
                await window.apply(create_node(node(f"n{name}-{number}")))

        await asyncio.gather(
            *(
                work(name, Window(client, *place))
                for name, client in enumerate(clients)
                for place in canvases
            )
        )
        found = [await nodes_of(Window(clients[0], *place)) for place in canvases]
        usage = [
            await used_bytes(shared_database, Window(clients[0], account)) for account in accounts
        ]

    assert [len(set(ids)) for ids in found] == [16] * 6
    assert all(kept == held for kept, held in usage)
