"""The canvas service where connections are cut and processes die."""

import asyncio
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import asyncpg
import httpx
import pytest

from servicekit import client, postgres
from servicekit.errors import Failure, Unavailable
from services.canvas import feed
from suite.constellation import free_port
from tests.support.canvas import Window, create_canvas, create_node, node
from tests.support.proxy import cutting_proxy
from tests.support.services import NOWHERE, TOKEN, canvas_service, canvas_settings, new_account

# What a client says last on a connection to PostgreSQL.
TERMINATE = b"X\0\0\0\4"


async def sent_until_answered(window: Window, *operations: object, mutation_id: str) -> bool:
    """Repeats a request until it is answered; whether the answer was a replay."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await window.apply(*operations, mutation_id=mutation_id)  # type: ignore[arg-type] # operations of both kinds
            except Unavailable:
                continue
            return answer.replayed


@pytest.mark.parametrize(
    ("word", "answered", "replayed"),
    [
        # What is read, by its mutation id; what is written, by the change that it logs.
        (b"once", False, False),
        (b"once", True, False),
        (b"create_node", False, False),
        (b"create_node", True, True),
    ],
)
async def test_a_cut_connection_ends_in_exactly_one_application(
    shared_database: str, objects_url: str, word: bytes, answered: bool, replayed: bool
) -> None:
    """CV12"""
    async with (
        cutting_proxy(shared_database) as (proxy, url),
        canvas_service(canvas_settings(url, objects_url)) as canvas,
    ):
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        proxy.cut_at(word, answered=answered)

        with pytest.raises(Failure) as caught:
            await window.apply(create_node(node("a")), mutation_id="once")
        was_replayed = await sent_until_answered(window, create_node(node("a")), mutation_id="once")
        found = await window.read()

    assert isinstance(caught.value, Unavailable)
    assert proxy.cuts == 1
    assert was_replayed == replayed
    assert (found["revision"], len(found["nodes"])) == (2, 1)


@pytest.mark.parametrize("word", [b"once", b"BEGIN", b"create_canvas", b"COMMIT;"])
async def test_a_connection_that_says_nothing_any_more_holds_up_no_canvas(
    shared_database: str, objects_url: str, monkeypatch: pytest.MonkeyPatch, word: bytes
) -> None:
    """CV12"""
    monkeypatch.setattr(postgres, "ANSWER_SECONDS", 0.5)
    async with cutting_proxy(shared_database) as (proxy, url):
        database = postgres.DatabaseSettings(database_url=url, statement_seconds=0.5)
        settings = canvas_settings(url, objects_url, database=database)
        async with canvas_service(settings) as canvas:
            window = Window(canvas, new_account())
            proxy.stall_at(word)

            with pytest.raises(Unavailable):
                await window.apply(create_canvas(), mutation_id="once")
            async with asyncio.timeout(5):
                await window.apply(create_canvas(), mutation_id="once")

    assert proxy.cuts == 1


async def test_a_connection_that_is_lost_when_it_is_given_back_ends_nothing(
    shared_database: str, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CV12"""
    monkeypatch.setattr(postgres, "ACQUIRE_SECONDS", 0.5)
    # The pool closes a connection that has carried so many statements.
    monkeypatch.setattr(asyncpg, "create_pool", partial(asyncpg.create_pool, max_queries=1))
    async with (
        cutting_proxy(shared_database) as (proxy, url),
        canvas_service(canvas_settings(url, objects_url)) as canvas,
    ):
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        lost = proxy.stall_at(TERMINATE)

        await window.apply(create_node(node("a")))
        await asyncio.wait_for(lost.wait(), 5)
        answer = await window.apply(create_node(node("b")))

    assert answer.revision == 3


@pytest.mark.parametrize(
    ("word", "answered"),
    [(b"BEGIN", False), (b"once", True), (b"COMMIT;", False), (b"COMMIT;", True)],
)
async def test_a_cut_connection_ends_in_exactly_one_canvas(
    shared_database: str, objects_url: str, word: bytes, answered: bool
) -> None:
    """CV12"""
    async with (
        cutting_proxy(shared_database) as (proxy, url),
        canvas_service(canvas_settings(url, objects_url)) as canvas,
    ):
        window = Window(canvas, new_account())
        proxy.cut_at(word, answered=answered)

        with pytest.raises(Unavailable):
            await window.apply(create_canvas(nodes=[node("a")]), mutation_id="once")
        was_replayed = await sent_until_answered(
            window, create_canvas(nodes=[node("a")]), mutation_id="once"
        )
        found = await window.read()

    assert proxy.cuts == 1
    assert was_replayed == (word == b"COMMIT;" and answered)
    assert (found["revision"], len(found["nodes"])) == (1, 1)


async def test_a_cut_in_a_group_is_told_to_everyone_and_repeats_apply_once(
    shared_database: str, objects_url: str
) -> None:
    """CV12"""
    async with (
        cutting_proxy(shared_database) as (proxy, url),
        canvas_service(canvas_settings(url, objects_url)) as canvas,
    ):
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        proxy.cut_at(b"create_node", answered=True)

        await asyncio.gather(
            *(
                sent_until_answered(
                    window, create_node(node(f"n{number}")), mutation_id=f"m{number}"
                )
                for number in range(20)
            )
        )
        found = await window.read()

    assert proxy.cuts == 1
    assert (found["revision"], len(found["nodes"])) == (21, 20)


@asynccontextmanager
async def canvas_process(database_url: str, objects_url: str, port: int) -> AsyncIterator[int]:
    """A canvas process; its pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.canvas",
        env={
            "PATH": os.defpath,
            "GESSO_INTERNAL_TOKENS": TOKEN,
            "GESSO_CANVAS_LISTEN": f"127.0.0.1:{port}",
            "GESSO_DATABASE_URL": database_url,
            "GESSO_OBJECTS_URL": objects_url,
            "GESSO_PRESENCE_ADDRESS": NOWHERE,
            "GESSO_LOG_LEVEL": "error",
        },
    )
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_a_killed_service_loses_and_doubles_nothing(
    shared_database: str, objects_url: str
) -> None:
    """CV10, CV12"""
    port = free_port()
    window_count, requests = 4, 25
    async with client.connected(f"127.0.0.1:{port}", caller="tests", tokens=(TOKEN,)) as canvas:
        window = Window(canvas, new_account())
        created, over = asyncio.Event(), asyncio.Event()

        async def keep_killing() -> None:
            while not over.is_set():
                async with canvas_process(shared_database, objects_url, port):
                    await sent_until_answered(window, create_canvas(), mutation_id="create")
                    created.set()
                    # Killed in the middle of whatever the windows are sending.
                    for _ in range(secrets.randbelow(20)):
                        await sent_until_answered(window, create_canvas(), mutation_id="create")

        async def work(name: int) -> None:
            for number in range(requests):
                made = create_node(node(f"n{name}-{number}"))
                await sent_until_answered(window, made, mutation_id=f"m{name}-{number}")

        killing = asyncio.create_task(keep_killing())
        await created.wait()
        await asyncio.gather(*(work(name) for name in range(window_count)))
        over.set()
        await killing
        async with canvas_process(shared_database, objects_url, port):
            await sent_until_answered(window, create_canvas(), mutation_id="create")
            found = await window.read()
            log = (await window.changes(1)).changes

    ids = [each["id"] for each in found["nodes"]]
    assert len(ids) == len(set(ids)) == window_count * requests
    assert found["revision"] == 1 + window_count * requests
    assert [change.revision for change in log] == list(range(2, found["revision"] + 1))


async def test_writes_do_not_wait_for_a_presence_that_hangs(
    shared_database: str, objects_url: str
) -> None:
    """PR10"""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes what comes and never answers."""
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    metrics_port = free_port()
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as silent:
        host, port = silent.sockets[0].getsockname()
        settings = canvas_settings(
            shared_database,
            objects_url,
            presence_address=f"{host}:{port}",
            metrics_listen=f"127.0.0.1:{metrics_port}",
        )
        async with canvas_service(settings) as canvas, httpx.AsyncClient() as http:
            window = Window(canvas, new_account())
            async with asyncio.timeout(feed.ANNOUNCE_SECONDS):
                await window.apply(create_canvas())
                for number in range(20):
                    await window.apply(create_node(node(f"n{number}")))
            lost = 0.0
            async with asyncio.timeout(20):
                while not lost:
                    await asyncio.sleep(0.05)
                    text = (await http.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
                    found = re.search(r'gesso_canvas_news_total\{outcome="lost"\} (\S+)', text)
                    lost = float(found[1]) if found else 0

    assert lost >= 1
