"""The tasks service and its workers as processes of their own, which are killed and stopped."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gesso.tasks.v1 import tasks_pb2 as pb

from servicekit.errors import Unavailable
from tests.support.services import TOKEN, connected
from tests.support.tasks import Desk, sequence_of, tasks_service, tasks_settings, text_of

QUICK_LEASES = {
    "GESSO_TASKS_WORKER_LEASE_SECONDS": "2",
    "GESSO_TASKS_WORKER_RENEW_SECONDS": "0.5",
    "GESSO_TASKS_WORKER_POLL_SECONDS": "0.2",
}


@contextmanager
def process(
    database: str, *arguments: str, **variables: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the tasks service, killed at the end if it still runs."""
    environment = {
        **os.environ,
        "GESSO_INTERNAL_TOKENS": TOKEN,
        "GESSO_DATABASE_URL": database,
        **variables,
    }
    command = [sys.executable, "-m", "services.tasks", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


async def exit_code(of: "subprocess.Popen[bytes]") -> int:
    return await asyncio.to_thread(of.wait, 20)


async def test_a_worker_that_is_killed_is_replaced_while_a_reader_looks_on(database: str) -> None:
    """TK7"""
    events: list[pb.WatchTextEventsResponse] = []
    async with tasks_service(tasks_settings(database)) as client:
        desk = Desk(client)
        task_id = await desk.create("a lantern !tokens=60 !rate=40")
        with process(database, "worker", **QUICK_LEASES) as first:
            async with desk.watching(task_id) as stream:
                async for event in stream:
                    events.append(event)
                    if sequence_of(event) == 3:
                        first.send_signal(signal.SIGKILL)
                        break
        with process(database, "worker", **QUICK_LEASES):
            events += await desk.watched(task_id, after=3)
        final = (await desk.read(task_id)).final_text

    numbered = [event for event in events if not event.HasField("alive")]
    assert [sequence_of(event) for event in numbered] == [*range(1, len(numbered)), None]
    assert [event.reset.attempt for event in numbered if event.HasField("reset")] == [2]
    assert text_of(numbered) == final


async def test_a_worker_that_is_stopped_hands_its_task_back_and_exits_cleanly(
    database: str,
) -> None:
    """TK8"""
    async with tasks_service(tasks_settings(database)) as client:
        desk = Desk(client)
        task_id = await desk.create("a lantern !tokens=1 !hang")
        with process(database, "worker", GESSO_DRAIN_SECONDS="0") as worker:
            async with desk.watching(task_id) as stream:
                async for event in stream:
                    if event.HasField("delta"):
                        break
            worker.send_signal(signal.SIGTERM)
            code = await exit_code(worker)
        task = await desk.read(task_id)

    assert code == 0
    assert task.status == pb.TASK_STATUS_QUEUED


async def test_the_server_is_a_process_that_drains(database: str) -> None:
    """TK12"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with process(database, "serve", GESSO_TASKS_LISTEN=f"127.0.0.1:{port}") as serving:
        async with connected(port) as client:
            desk = Desk(client)
            async with asyncio.timeout(20):
                while not (task_id := await created(desk)):
                    await asyncio.sleep(0.05)
            async with desk.watching(task_id) as stream:
                await anext(stream)
                serving.send_signal(signal.SIGTERM)
                with pytest.raises(Unavailable):
                    await anext(stream)
        code = await exit_code(serving)

    assert code == 0


async def created(desk: Desk) -> str | None:
    """The id of a new task, None while the server does not answer."""
    try:
        return await desk.create()
    except Unavailable:
        return None


async def test_a_role_that_is_not_one_is_explained(database: str) -> None:
    with process(database, "sweep") as started:
        assert await exit_code(started) == 2
