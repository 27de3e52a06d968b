"""The suite as it grows with the work and shrinks without it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.suite import Up, start, stop, until

CONTROLLER = "GESSO_GENERATION_CONTROLLER"
QUICK = {
    f"{CONTROLLER}_POLL_INTERVAL_MS": "50",
    f"{CONTROLLER}_TARGET_JOBS_PER_WORKER": "1",
    f"{CONTROLLER}_MAX_WORKERS": "3",
    f"{CONTROLLER}_SCALE_DOWN_IDLE_ROUNDS": "4",
}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A suite whose controller looks often."""
    up = start(tmp_path / "var", environ=QUICK)
    yield up
    if up.process.poll() is None:
        stop(up)


def ids(up: Up) -> dict[str, int]:
    """The workers that run, and the controller: their process ids by their names."""
    return {
        each["name"]: each["pid"]
        for each in up.ps()
        if each["name"].startswith("generation-") and each["state"] == "running"
    }


def workers(up: Up) -> list[str]:
    return [name for name in ids(up) if name.startswith("generation-worker-")]


@contextmanager
def customer(up: Up) -> Iterator[httpx.Client]:
    """Somebody with an account and a canvas."""
    with httpx.Client(base_url=up.url, headers={"Origin": up.url}, timeout=30) as client:
        account = {"email": "anna@example.com", "password": "correct horse battery"}
        assert client.post("/api/auth/register", json=account).status_code == 201
        create = {"type": "create_canvas", "canvas": {"title": "Many"}}
        change = {"mutationId": "m", "baseRevision": 0, "operations": [create]}
        assert client.patch("/api/canvas-projects/c/operations", json=change).status_code == 200
        yield client


def order(client: httpx.Client, prompt: str) -> str:
    asked = {"kind": "editor_image_generation", "params": {"prompt": prompt, "size": "64x64"}}
    answer = client.post("/api/canvas-projects/c/generations", json=asked)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["operation"]["operationId"]
    return job_id


def states(client: httpx.Client, job_ids: list[str]) -> set[str]:
    path = "/api/runtime/external-generation/jobs"
    return {client.get(f"{path}/{job_id}").json()["status"] for job_id in job_ids}


def test_workers_come_with_the_work_outlive_the_controller_and_go_without_it(up: Up) -> None:
    """GN43 GN45"""
    few = workers(up)
    with customer(up) as client:
        jobs = [order(client, "!slow=6 a lantern") for _ in range(3)]
        until(lambda: len(workers(up)) == 3)
        before = ids(up)
        victim = before["generation-controller"]
        os.kill(victim, signal.SIGKILL)
        until(
            lambda: (
                ids(up).get("generation-controller", 0) not in {0, before["generation-controller"]}
            )
        )
        after = ids(up)
        until(lambda: states(client, jobs) == {"completed"})
    until(lambda: workers(up) == few)
    family = psutil.Process(up.process.pid).children(recursive=True)
    left_over = stop(up)

    assert few == ["generation-worker-1"]
    assert {name: pid for name, pid in after.items() if "worker" in name} == {
        name: pid for name, pid in before.items() if "worker" in name
    }
    assert left_over == [each for each in family if each.is_running()] == []


def test_without_workers_the_suite_keeps_jobs_and_says_so(tmp_path: Path) -> None:
    """GN41 GN45"""
    up = start(tmp_path / "var", "--workers", "0")
    try:
        names = {each["name"] for each in up.ps()}
        with customer(up) as client:
            job_id = order(client, "a lantern")
            ready = client.get("/readyz")
            found = states(client, [job_id])
    finally:
        left_over = stop(up)

    assert not [name for name in names if "worker" in name or "controller" in name]
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert "no workers" in ready.json()["checks"]["generation"]
    assert found == {"queued"}
    assert left_over == []
