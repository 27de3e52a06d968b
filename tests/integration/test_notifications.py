"""Notifications over a connection that is cut."""

import asyncio

import asyncpg

from servicekit.notifications import listening


async def test_what_is_notified_is_heard_and_a_cut_connection_comes_back(database: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    stands: asyncio.Queue[None] = asyncio.Queue()
    other = await asyncpg.connect(database)
    try:
        async with listening(
            database, "news", heard=heard.put_nowait, missed=lambda: stands.put_nowait(None)
        ):
            await stands.get()
            await other.execute("SELECT pg_notify('news', 'one')")
            first = await heard.get()

            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'gesso-listener' AND datname = current_database()"
            )
            await stands.get()
            await other.execute("SELECT pg_notify('news', 'two')")
            second = await heard.get()
    finally:
        await other.close()

    assert (first, second) == ("one", "two")
