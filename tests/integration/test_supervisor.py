"""The supervisor with small real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from suite.state import AlreadyRunning, ProcessState, StateFile
from suite.supervisor import DoesNotStart, Supervisor
from tests.support.processes import READY, WAITS, role
from tests.support.waiting import until

STUBBORN = f"""
import signal
signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
{READY}
while True:
    signal.pause()
"""


@pytest.fixture
def supervisor(state: StateFile, tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(state, tmp_path / "logs") as supervisor:
        yield supervisor


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    state = StateFile(tmp_path)
    (tmp_path / "run").mkdir()
    return state


def find(supervisor: Supervisor, name: str) -> ProcessState:
    return next(process for process in supervisor.processes() if process.name == name)


def alive(pid: int | None) -> bool:
    return pid is not None and psutil.pid_exists(pid)


async def test_a_killed_process_is_back_with_another_pid(supervisor: Supervisor) -> None:
    async with supervisor.keeping([role("one", WAITS)]):
        first = find(supervisor, "one")
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: find(supervisor, "one").restarts == 1, seconds=60)
        await until(lambda: find(supervisor, "one").state == "running", seconds=60)
        second = find(supervisor, "one")

    assert first.pid != second.pid
    assert not alive(second.pid)
    assert find(supervisor, "one").state == "stopped"


async def test_what_cannot_start_is_told_with_its_last_word(supervisor: Supervisor) -> None:
    other = role("other", WAITS)
    failing = role("failing", "print('it is broken'); raise SystemExit(3)")

    with pytest.raises(DoesNotStart, match="failing does not start: it is broken"):
        async with supervisor.keeping([other, failing]):
            pass

    assert {process.state for process in supervisor.processes()} <= {"stopped", "waiting"}
    assert find(supervisor, "other").pid is None


async def test_a_process_that_is_not_ready_in_its_time_is_killed(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    silent = replace(role("silent", "import signal; signal.pause()"), ready_seconds=0.1)

    with pytest.raises(DoesNotStart, match="silent"):
        async with supervisor.keeping([silent]):
            pass

    assert find(supervisor, "silent").pid is None
    assert "was not ready in time" in (tmp_path / "logs" / "silent.log").read_text()


async def test_a_process_that_does_not_end_is_killed(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.supervisor.KILL_AFTER_SECONDS", 0.2)
    async with supervisor.keeping([role("stubborn", STUBBORN)]):
        pid = find(supervisor, "stubborn").pid

    assert not alive(pid)
    assert "not yet" in (tmp_path / "logs" / "stubborn.log").read_text()


async def test_what_runs_is_written_for_others_to_read(
    supervisor: Supervisor, state: StateFile, tmp_path: Path
) -> None:
    with state.held():
        async with supervisor.keeping([role("one", WAITS)]):
            seen, running = StateFile(tmp_path).read(), supervisor.processes()
            with pytest.raises(AlreadyRunning, match=str(os.getpid())), state.held():
                pass

    assert seen == running
    assert StateFile(tmp_path).read() is None


async def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from suite.state import StateFile
from suite.supervisor import Role, Supervisor

async def main():
    folder = Path({str(tmp_path)!r})
    (folder / "run").mkdir()
    supervisor = Supervisor(StateFile(folder), folder / "logs").__enter__()
    role = Role(name="one", command=[sys.executable, "-c", {WAITS!r}], address="", environment={{}})
    async with supervisor.keeping([role]):
        print(supervisor.processes()[0].pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)

        parent.kill()

        await until(lambda: not alive(child), seconds=60)


async def test_logs_keep_what_a_process_says(supervisor: Supervisor, tmp_path: Path) -> None:
    talks = "print('x' * 200_000); print('100 %s, 漢字', flush=True); " + WAITS
    async with supervisor.keeping([role("talks", talks)]):
        pass

    assert "100 %s, 漢字" in (tmp_path / "logs" / "talks.log").read_text()


async def test_what_runs_is_kept_where_nothing_can_be_written(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "run" / "state.json.new").mkdir()
    async with supervisor.keeping([role("one", WAITS)]):
        running = find(supervisor, "one")

    assert running.state == "running"
    assert not alive(running.pid)


async def test_what_cannot_be_run_is_tried_again_and_told(supervisor: Supervisor) -> None:
    too_much = replace(role("one", WAITS), environment={"X": "x" * 1_000_000})

    with pytest.raises(DoesNotStart, match=r"one cannot be run: .*too long"):
        async with supervisor.keeping([too_much]):
            pass

    assert find(supervisor, "one").restarts == 2


async def test_a_process_does_not_outlive_who_fails_to_keep_it(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    said = tmp_path / "pid"

    async def ready() -> bool:
        if said.exists() and said.read_text():
            raise ValueError("nobody knows")
        return False

    script = f"import os, signal; open({str(said)!r}, 'w').write(str(os.getpid())); signal.pause()"
    with pytest.raises(ValueError, match="nobody knows"):
        async with supervisor.keeping([replace(role("one", script), ready=ready)]):
            pass

    assert find(supervisor, "one").state == "stopped"
    assert not alive(int(said.read_text()))
    assert "ValueError: nobody knows" in (tmp_path / "logs" / "one.log").read_text()
