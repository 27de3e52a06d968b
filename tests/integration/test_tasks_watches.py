"""Changes of tasks, told over one stream for many accounts."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from gesso.tasks.v1 import tasks_pb2 as pb

from servicekit.client import Client
from services.tasks.domain.tasks import SHOWN_PROMPT_LENGTH, Step
from services.tasks.domain.terms import Terms
from tests.support.tasks import Desk, tasks_service, tasks_settings, work_store
from tests.support.watching import Watcher, watching_tasks

TERMS = Terms(lease=timedelta(minutes=1), running_per_account=5, attempts=3)
BROKEN = Step("Failed", None, "error", "model_refused", "The model refused.")


@pytest.fixture
async def client(database: str) -> AsyncIterator[Client]:
    async with tasks_service(tasks_settings(database)) as made:
        yield made


@pytest.fixture
def desk(client: Client) -> Desk:
    return Desk(client)


@pytest.fixture
async def watcher(client: Client, desk: Desk) -> AsyncIterator[Watcher]:
    """Somebody who watches the desk's account, and has caught up."""
    async with watching_tasks(client) as made:
        made.add(desk.behalf.account_id)
        await made.caught_up()
        yield made


async def test_each_change_of_a_task_is_told_as_lists_show_it(
    database: str, desk: Desk, watcher: Watcher
) -> None:
    """TK16"""
    task_id = await desk.create("x" * 300, canvas_id="c", node_id="n")
    queued = await watcher.shown(task_id, status=pb.TASK_STATUS_QUEUED)
    async with work_store(database) as work:
        claim = await work.claim("w1", TERMS)
        assert claim is not None
        await watcher.shown(task_id, status=pb.TASK_STATUS_RUNNING, progress=15)
        await work.call_model(claim)
        await watcher.shown(task_id, progress=35)
        await work.hand_back(claim)
        await watcher.shown(task_id, status=pb.TASK_STATUS_QUEUED, progress=5, attempts=1)
        again = await work.claim("w2", TERMS)
        assert again is not None
        await work.append(again, again.last_sequence, ["A lantern."])
        await work.succeed(again)
    told = await watcher.shown(task_id, status=pb.TASK_STATUS_SUCCEEDED)

    assert len(queued.prompt) == SHOWN_PROMPT_LENGTH
    assert [told] == list((await desk.page()).tasks)
    assert not told.HasField("final_text")


async def test_a_failure_is_told_at_every_instance(database: str, desk: Desk) -> None:
    """TK16"""
    async with (
        tasks_service(tasks_settings(database)) as other,
        watching_tasks(other) as watcher,
        work_store(database) as work,
    ):
        watcher.add(desk.behalf.account_id)
        await watcher.caught_up()
        task_id = await desk.create()
        claim = await work.claim("w1", TERMS)
        assert claim is not None
        await work.fail(claim, BROKEN)

        await watcher.shown(task_id, status=pb.TASK_STATUS_FAILED)


async def test_another_accounts_tasks_are_not_told(
    client: Client, desk: Desk, watcher: Watcher
) -> None:
    """TK15 TK16"""
    await Desk(client).create()
    task_id = await desk.create()
    await watcher.shown(task_id)
    await asyncio.gather(*(Desk(client).create() for _ in range(3)))
    await watcher.shown(await desk.create())

    assert {account_id for account_id, _ in watcher.states} == {desk.behalf.account_id}


async def test_a_reader_is_told_what_is_not_over_and_what_ended_since_its_cursor(
    database: str, desk: Desk, watcher: Watcher
) -> None:
    """TK16"""
    before, between, live = [await desk.create() for _ in range(3)]
    async with work_store(database) as work:
        first, second = [await work.claim(owner, TERMS) for owner in ("w1", "w2")]
        assert first is not None
        assert second is not None
        assert (first.task_id, second.task_id) == (before, between)
        await work.succeed(first)
        watcher.add(desk.behalf.account_id, reader=2)
        cursor = await watcher.caught_up(2)
        await work.succeed(second)

    watcher.add(desk.behalf.account_id, reader=3, since=cursor)
    await watcher.caught_up(3)

    assert {item.task_id for reader, item in watcher.told if reader == 3} == {between, live}
