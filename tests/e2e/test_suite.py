"""The suite as a person runs it: real processes, the real command line."""

import json
import os
import signal
import socket
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image

from suite.constellation import HOST, free_port
from tests.support.suite import Up, gesso, start, stop, until


def test_the_demo_does_the_main_job_and_writes_the_picture(up: Up, tmp_path: Path) -> None:
    done = gesso("demo", "--url", up.url, "--prompt", "河上的一盏纸灯笼", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    (picture,) = tmp_path.glob("*.png")
    assert picture.name in done.stdout.replace("\n", "")
    with Image.open(picture) as image:
        assert image.size == (1024, 1024)


def test_the_demo_shows_a_prompt_as_it_is_and_a_path_in_one_line(up: Up, tmp_path: Path) -> None:
    folder = tmp_path / ("[red]" + "-long" * 20)
    folder.mkdir()
    done = gesso("demo", "--url", up.url, "--prompt", "a [/red] lantern", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert "a [/red] lantern" in done.stdout
    assert f"The picture is in {folder / 'a-red-lantern.png'}\n" in done.stdout


def test_the_demo_says_that_the_text_failed(up: Up, tmp_path: Path) -> None:
    done = gesso("demo", "--url", up.url, "--prompt", "!fail", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (1, "gesso demo: the text failed\n")


def test_the_demo_fails_plainly_where_the_picture_cannot_be_written(up: Up, tmp_path: Path) -> None:
    (tmp_path / "lantern.png").mkdir()

    done = gesso("demo", "--url", up.url, "--prompt", "lantern", cwd=tmp_path)

    assert done.returncode == 1
    assert "Is a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_fails_plainly_where_nobody_answers(tmp_path: Path) -> None:
    done = gesso("demo", "--url", f"http://{HOST}:{free_port()}", cwd=tmp_path)

    assert done.returncode == 1
    assert "nobody answers" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_call_whose_outcome_nobody_knows_is_listed_and_resolved(up: Up, tmp_path: Path) -> None:
    """GN31"""
    at = ("--data-dir", str(up.data))
    lost = gesso("demo", "--url", up.url, "--prompt", "a lantern !cut", cwd=tmp_path)
    (call,) = json.loads(gesso("jobs", "uncertain", "--json", *at).stdout)
    table = gesso("jobs", "uncertain", *at)
    resolved = gesso("jobs", "resolve", call["jobId"], "1", "failed", "--note", "asked", *at)
    again = gesso("jobs", "resolve", call["jobId"], "1", "failed", *at)
    nothing = gesso("jobs", "uncertain", *at)
    nobody = gesso("jobs", "uncertain", "--data-dir", str(tmp_path))

    assert lost.returncode == 1
    assert (call["number"], call["model"], call["requestId"]) == (1, "studio", None)
    assert "studio" in table.stdout
    assert resolved.stdout == f"call 1 of {call['jobId']} failed\n"
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
    assert nothing.stdout == "no call of a provider is uncertain\n"
    assert (nobody.returncode, "Traceback" in nobody.stderr) == (1, False)
    assert "GESSO_GENERATION_ADDRESS" in nobody.stderr


def test_ps_names_every_process_and_its_memory(up: Up) -> None:
    found = up.ps()

    assert [process["name"] for process in found] == [
        "postgres",
        "valkey",
        "canvas",
        "tasks",
        "generation",
        "presence",
        "tasks-worker-1",
        "generation-worker-1",
        "generation-controller",
        "gateway",
    ]
    assert all(process["state"] == "running" for process in found)
    assert all(process["rssBytes"] > 0 for process in found)


def test_the_data_is_not_for_other_users_of_the_machine(up: Up, tmp_path: Path) -> None:
    assert gesso("demo", "--url", up.url, cwd=tmp_path).returncode == 0

    kept = ("internal-token", "logs", "objects", "postgres", "postgres-socket", "run", "valkey")
    modes = {name: (up.data / name).stat().st_mode & 0o077 for name in kept}
    assert modes == dict.fromkeys(kept, 0)
    files = [path for path in (up.data / "objects").rglob("*") if path.is_file()]
    assert files
    assert {path.stat().st_mode & 0o077 for path in files} == {0}


def test_metrics_are_served_on_their_own_port(up: Up) -> None:
    httpx.get(f"{up.url}/healthz")
    gateway = psutil.Process(next(each["pid"] for each in up.ps() if each["name"] == "gateway"))
    listen = gateway.environ()["GESSO_GATEWAY_METRICS_LISTEN"]

    text = httpx.get(f"http://{listen}/metrics").text

    assert 'gesso_http_seconds_count{method="GET",route="/healthz",status="200"}' in text


def test_doctor_and_logs_look_at_what_runs(up: Up) -> None:
    port = up.url.rpartition(":")[2]
    # Whatever an earlier test has killed is back.
    until(up.is_well)
    doctor = gesso("doctor", "--data-dir", str(up.data), "--port", port)
    logs = gesso("logs", "gateway", "canvas", "--data-dir", str(up.data))
    nobody = gesso("logs", "nobody", "--data-dir", str(up.data))

    assert doctor.returncode == 0, doctor.stdout
    assert "the suite runs, every service and store answers" in doctor.stdout
    assert logs.returncode == 0
    assert "request" in logs.stdout
    assert nobody.returncode == 1


def test_whatever_is_killed_is_back_and_nothing_is_lost(up: Up) -> None:
    email = {"email": "kept@example.com", "password": "correct horse battery"}
    with httpx.Client(base_url=up.url, headers={"Origin": up.url}, timeout=30) as client:
        assert client.post("/api/auth/register", json=email).status_code == 201
        change = {
            "mutationId": "m",
            "baseRevision": 0,
            "operations": [{"type": "create_canvas", "canvas": {"title": "Kept"}}],
        }
        receipt = client.patch("/api/canvas-projects/kept/operations", json=change).content
        for victim in up.ps():
            os.kill(victim["pid"], signal.SIGKILL)
            until(lambda: up.is_back(victim))  # noqa: B023 - it is called in this round only
            until(up.is_well)

            kept = client.get("/api/canvas-projects/kept")
            again = client.patch("/api/canvas-projects/kept/operations", json=change)

            assert kept.json()["title"] == "Kept", victim["name"]
            assert (again.content, again.headers["idempotent-replayed"]) == (receipt, "true")


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--port", "99999"], {}, "99999 is not in the range"),
        (["--port", "{taken}"], {}, "Address already in use"),
        (["--data-dir", "{data}"], {}, "runs on"),
        (["--data-dir", "/dev/null/x"], {}, "cannot be made"),
        ([], {"GESSO_LOG_LEVEL": "loud"}, "GESSO_LOG_LEVEL"),
        ([], {"GESSO_CANVAS_MAX_CANVASES": "0"}, "GESSO_CANVAS_MAX_CANVASES"),
        ([], {"GESSO_INTERNAL_TOKENS": "short"}, "GESSO_INTERNAL_TOKENS"),
        ([], {"GESSO_DATABASE_URL": "nonsense"}, "GESSO_DATABASE_URL"),
        ([], {"GESSO_DATABASE_URL": "postgresql://127.0.0.1:9/x"}, "does not answer"),
        (["--workers", "many"], {}, "many"),
        ([], {"GESSO_GENERATION_MODE": "both"}, "GESSO_GENERATION_MODE"),
        ([], {"GESSO_GENERATION_CONTROLLER_MIN_WORKERS": "9"}, "is more than"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    up: Up, tmp_path: Path, arguments: list[str], environ: dict[str, str], said: str
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        places = {"taken": taken.getsockname()[1], "data": up.data}
        given = [argument.format(**places) for argument in arguments]
        defaults = {"--port": str(free_port()), "--data-dir": str(tmp_path / "var")}
        filled = [part for name, value in defaults.items() if name not in given
                  for part in (name, value)]  # fmt: skip
        done = gesso("up", *given, *filled, environ=environ)

    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert up.is_well()


def test_it_stops_leaving_nothing_and_starts_again_on_the_same_data(tmp_path: Path) -> None:
    data = tmp_path / "var"
    account = {"email": "anna@example.com", "password": "correct horse battery"}
    first = start(data)
    made = httpx.post(f"{first.url}/api/auth/register", json=account)
    left_over = stop(first)
    gone = gesso("ps", "--data-dir", str(data))
    second = start(data)
    back = httpx.post(f"{second.url}/api/auth/login", json=account)
    wallet = httpx.get(f"{second.url}/api/wallet", cookies=back.cookies)
    left_over += stop(second)

    assert made.status_code == 201
    assert (back.status_code, wallet.json()["balanceCredits"]) == (200, 1000)
    assert left_over == []
    assert gone.returncode == 1


def test_a_killed_suite_leaves_nothing_and_starts_again(tmp_path: Path) -> None:
    up = start(tmp_path / "var")
    family = psutil.Process(up.process.pid).children(recursive=True)

    up.process.kill()
    up.process.communicate()

    until(lambda: not any(process.is_running() for process in family))
    assert stop(start(tmp_path / "var")) == []


def test_the_picture_of_the_demo_is_made_without_workers_if_generation_is_inline(
    tmp_path: Path,
) -> None:
    """GN60"""
    up = start(tmp_path / "var", environ={"GESSO_GENERATION_MODE": "inline"})
    try:
        done = gesso("demo", "--url", up.url, "--prompt", "lantern", cwd=tmp_path)
        names = [process["name"] for process in up.ps()]
        is_well = up.is_well()
    finally:
        left_over = stop(up)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "lantern.png").exists()
    assert [name for name in names if name.startswith("generation")] == ["generation"]
    assert is_well
    assert left_over == []


def test_without_a_suite_the_demo_brings_its_own(tmp_path: Path) -> None:
    done = gesso("demo", "--data-dir", str(tmp_path / "var"), cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "A temporary suite is up" in done.stdout
    assert len(list(tmp_path.glob("*.png"))) == 1
