"""The controller with processes of a supervisor, and with a systemctl that keeps notes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from servicekit.errors import Unavailable
from services.generation import controller
from services.generation.controller import Controller
from services.generation.domain.scaling import Limits, QueueStats
from services.generation.instances import SUPERVISED, Supervised, Units
from services.generation.settings import ControllerSettings
from suite.control import controlled
from suite.state import StateFile
from suite.supervisor import Offered, Role, Supervisor
from tests.support.generation import House, house
from tests.support.processes import READY, WAITS, role
from tests.support.services import NOWHERE, TOKEN
from tests.support.waiting import until

LIMITS = Limits(min_workers=1, max_workers=3, jobs_per_worker=2, idle_rounds=2)
TEMPLATE = "gesso-generation-worker@{}.service"
# Ends when it is let, as a worker that has a job.
LINGERS = f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
{READY}
signal.pause()
while not os.path.exists(os.environ["LET"]):
    time.sleep(0.01)
"""


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    (tmp_path / "run").mkdir()
    with Supervisor(StateFile(tmp_path), tmp_path / "logs") as made:
        yield made


def workers(script: str = WAITS, **environment: str) -> list[Role]:
    names = [SUPERVISED.format(number) for number in (1, 2, 3)]
    return [
        Role(name=name, command=[sys.executable, "-c", script], address="", environment=environment)
        for name in names
    ]


@pytest.fixture
async def offered(supervisor: Supervisor) -> AsyncIterator[Offered]:
    """Three workers of which the first runs, behind the supervisor's socket."""
    async with (
        supervisor.offering(workers(), at_once=1) as found,
        controlled(found, supervisor.control()),
    ):
        await found.ready()
        yield found


@pytest.fixture
def instances(supervisor: Supervisor, offered: Offered) -> Supervised:
    return Supervised(str(supervisor.control()), limit=3, dry_run=False)


async def test_the_supervisor_starts_and_stops_what_it_is_asked_to(
    supervisor: Supervisor, offered: Offered, instances: Supervised
) -> None:
    """GN45"""
    before = await instances.active()
    await instances.start(3)
    await instances.start(3)
    started = await instances.active()
    names = [process.name for process in supervisor.processes()]
    await until(lambda: supervisor.processes()[-1].state == "running", seconds=30)
    pid = supervisor.processes()[-1].pid
    await instances.stop(3)
    await until(lambda: offered.state("generation-worker-3") == "inactive", seconds=30)
    await instances.stop(3)

    assert (before, started, await instances.active()) == ({1}, {1, 3}, {1})
    assert names == ["generation-worker-1", "generation-worker-3"]
    assert [process.name for process in supervisor.processes()] == ["generation-worker-1"]
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_worker_that_dies_is_back_without_the_controller(
    supervisor: Supervisor, offered: Offered, instances: Supervised
) -> None:
    """GN45"""
    await instances.start(2)
    await until(lambda: supervisor.processes()[-1].state == "running", seconds=30)
    os.kill(supervisor.processes()[-1].pid or 0, signal.SIGKILL)
    await until(lambda: supervisor.processes()[-1].restarts == 1, seconds=30)
    await until(lambda: supervisor.processes()[-1].state == "running", seconds=30)

    assert await instances.active() == {1, 2}


async def test_a_worker_that_ends_its_jobs_does_not_count_and_is_not_started_yet(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """GN44 GN45"""
    let = tmp_path / "let"
    async with (
        supervisor.offering(workers(LINGERS, LET=str(let)), at_once=2) as offered,
        controlled(offered, supervisor.control()),
    ):
        await offered.ready()
        instances = Supervised(str(supervisor.control()), limit=3, dry_run=False)
        await instances.stop(2)
        ending = await instances.active()
        with pytest.raises(Unavailable, match="generation-worker-2 is ending"):
            await instances.start(2)
        let.touch()
        await until(lambda: offered.state("generation-worker-2") == "inactive", seconds=30)
        await instances.start(2)

        assert (ending, await instances.active()) == ({1}, {1, 2})


async def test_a_worker_that_does_not_start_can_be_started_again(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """GN45"""
    offers = [role("one", WAITS), role("broken", "raise SystemExit('it is broken')")]
    async with supervisor.offering(offers, at_once=1) as offered:
        await offered.ready()
        for _ in range(2):
            offered.start("broken")
            assert offered.state("broken") == "active"
            await until(lambda: offered.state("broken") == "inactive", seconds=30)

    assert "it is broken" in (tmp_path / "logs" / "broken.log").read_text()


async def test_a_worker_that_nobody_can_keep_can_be_started_again(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """GN45"""

    async def ready() -> bool:
        raise ValueError("nobody knows")

    offers = [role("one", WAITS), replace(role("broken", WAITS), ready=ready)]
    async with supervisor.offering(offers, at_once=1) as offered:
        await offered.ready()
        for _ in range(2):
            offered.start("broken")
            await until(lambda: offered.state("broken") == "inactive", seconds=30)

    assert (tmp_path / "logs" / "broken.log").read_text().count("ValueError: nobody knows") == 2


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"start generation-worker-4\n", "no: there is no process generation-worker-4"),
        (b"stop postgres\n", "no: there is no process postgres"),
        (b"restart generation-worker-1\n", "no: ask is-active"),
        (b"\n", "no: ask is-active"),
        (b"\xff\xfe\n", ""),
        (b"x" * 100_000 + b"\n", ""),
    ],
)
async def test_what_the_supervisor_cannot_do_is_refused(
    supervisor: Supervisor, offered: Offered, line: bytes, answer: str
) -> None:
    """GN45"""
    reader, writer = await asyncio.open_unix_connection(supervisor.control())
    writer.write(line)
    said = (await reader.read()).decode()
    writer.close()

    assert said.startswith(answer)
    assert bool(said) == bool(answer)
    assert offered.state("generation-worker-1") == "active"


class Queue:
    """The numbers that a controller is told, one after another; None is no answer."""

    def __init__(self, *told: int | None) -> None:
        self._told = list(told)

    async def stats(self) -> QueueStats:
        unfinished = self._told.pop(0)
        if unfinished is None:
            raise Unavailable("The database does not answer.")
        return QueueStats(claimable_pending=unfinished)


async def test_a_controller_has_as_many_workers_run_as_the_queue_needs(
    offered: Offered, instances: Supervised
) -> None:
    """GN43"""
    one = Controller(Queue(5, 5, 0, 0, 0).stats, instances, LIMITS)
    seen = []
    for _ in range(5):
        await one.look()
        seen.append(await instances.active())

    assert seen == [{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2}, {1}]


async def test_a_new_controller_takes_the_workers_over_as_they_are(
    offered: Offered, instances: Supervised
) -> None:
    """GN45"""
    await Controller(Queue(5).stats, instances, LIMITS).look()
    offered.stop("generation-worker-2")
    await until(lambda: offered.state("generation-worker-2") == "inactive", seconds=30)
    kept = await instances.active()
    await Controller(Queue(5).stats, instances, LIMITS).look()

    assert (kept, await instances.active()) == ({1, 3}, {1, 2, 3})


async def test_without_numbers_nothing_is_decided_and_idle_rounds_begin_anew(
    offered: Offered, instances: Supervised
) -> None:
    """GN44"""
    one = Controller(Queue(5, 0, None, 0, 0).stats, instances, LIMITS)
    seen = []
    with capture_logs() as lines:
        for _ in range(5):
            await one.look()
            seen.append(len(await instances.active()))

    assert seen == [3, 3, 3, 3, 2]
    assert [line["why"] for line in lines if line["event"] == "nothing is decided"] == [
        "The database does not answer."
    ]


async def test_without_the_supervisor_nothing_is_decided(tmp_path: Path) -> None:
    """GN44"""
    nobody = Supervised(str(tmp_path / "nobody"), limit=3, dry_run=False)
    with capture_logs() as lines:
        await Controller(Queue(5).stats, nobody, LIMITS).look()

    assert [line["event"] for line in lines] == ["nothing is decided"]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: `asked` is what was asked of systemctl, `states` and `code` what it answers."""
    program = tmp_path / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        f'[ "$1" = is-active ] && cat {tmp_path}/states && exit 3\n'
        f"[ -e {tmp_path}/why ] && cat {tmp_path}/why >&2 && exit 5\nexit 0\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def asked(systemctl: Path) -> list[str]:
    return (systemctl / "asked").read_text().splitlines()


IS_ACTIVE = "is-active " + " ".join(TEMPLATE.format(number) for number in (1, 2, 3))


async def test_systemd_is_asked_for_exact_units(systemctl: Path) -> None:
    """GN46"""
    units = Units(TEMPLATE, limit=3, dry_run=False)
    (systemctl / "states").write_text("inactive\ndeactivating\nfailed\n")
    await Controller(Queue(3).stats, units, LIMITS).look()
    (systemctl / "states").write_text("active\nreloading\nactivating\n")
    down = Controller(Queue(0, 0).stats, units, LIMITS)
    await down.look()
    await down.look()

    assert asked(systemctl) == [
        IS_ACTIVE,
        "--no-block start gesso-generation-worker@1.service",
        "--no-block start gesso-generation-worker@2.service",
        IS_ACTIVE,
        IS_ACTIVE,
        "--no-block stop gesso-generation-worker@3.service",
    ]


async def test_a_dry_run_only_says_what_it_would_do(systemctl: Path) -> None:
    """GN46"""
    (systemctl / "states").write_text("active\ninactive\ninactive\n")
    with capture_logs() as lines:
        units = Units(TEMPLATE, limit=3, dry_run=True)
        await Controller(Queue(4).stats, units, LIMITS).look()

    assert asked(systemctl) == [IS_ACTIVE]
    assert [line["command"] for line in lines if line["event"] == "command"] == [
        "systemctl --no-block start gesso-generation-worker@2.service"
    ]


@pytest.mark.parametrize("states", ["", "active\n", "active\nactive\nwhat\n"])
async def test_states_that_systemd_does_not_tell_decide_nothing(
    systemctl: Path, states: str
) -> None:
    """GN44"""
    (systemctl / "states").write_text(states)
    with capture_logs() as lines:
        units = Units(TEMPLATE, limit=3, dry_run=False)
        await Controller(Queue(9).stats, units, LIMITS).look()

    assert [line["event"] for line in lines] == ["nothing is decided"]
    assert asked(systemctl) == [IS_ACTIVE]


async def test_a_unit_that_cannot_be_started_is_told_and_the_others_are(systemctl: Path) -> None:
    """GN44"""
    (systemctl / "states").write_text("inactive\ninactive\ninactive\n")
    (systemctl / "why").write_text("Unit not found.")
    with capture_logs() as lines:
        units = Units(TEMPLATE, limit=3, dry_run=False)
        await Controller(Queue(9).stats, units, LIMITS).look()

    assert len(asked(systemctl)) == 4
    assert {line["why"] for line in lines if line["event"] == "no start"} == {
        f"systemctl --no-block start {TEMPLATE.format(number)}: Unit not found."
        for number in (1, 2, 3)
    }


async def test_without_systemd_nothing_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GN44"""
    monkeypatch.setenv("PATH", str(tmp_path))
    with capture_logs() as lines:
        units = Units(TEMPLATE, limit=3, dry_run=False)
        await Controller(Queue(9).stats, units, LIMITS).look()

    assert lines[0]["why"].startswith("systemctl cannot be run")


def settings(**changes: object) -> ControllerSettings:
    known: dict[str, object] = {
        "internal_tokens": TOKEN,
        "generation_address": NOWHERE,
        "max_workers": 3,
        "poll_interval_ms": 20,
    }
    return ControllerSettings(**{**known, **changes})  # type: ignore[arg-type]


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    async with house(database, objects_url, running_limit=10) as services:
        yield services


async def test_the_process_looks_at_the_queue_itself_and_leaves_the_workers(
    home: House, supervisor: Supervisor, offered: Offered, instances: Supervised
) -> None:
    """GN43 GN45"""
    person = home.person()
    await person.grant(100)
    for _ in range(5):
        await person.enqueue()
    wanted = settings(
        generation_address=home.generation_address, supervisor=str(supervisor.control())
    )
    async with controller.running(wanted):
        await until(lambda: len(supervisor.processes()) == 3, seconds=30)

    assert await instances.active() == {1, 2, 3}
