"""The settings of the generation processes, read from the environment."""

import pytest

from gateway.settings import Settings as GatewaySettings
from servicekit.settings import WrongSettings, load
from services.generation.settings import ControllerSettings, Settings, WorkerSettings

ENVIRONMENT = {
    "GESSO_INTERNAL_TOKENS": "a-token-of-the-tests",
    "GESSO_DATABASE_URL": "postgresql://gesso@db/gesso",
    "GESSO_OBJECTS_URL": "file:///objects",
    "GESSO_CANVAS_ADDRESS": "canvas:50051",
    "GESSO_GENERATION_ADDRESS": "generation:50052",
    "GESSO_GENERATION_LISTEN": "127.0.0.1:0",
}


def test_both_roles_start_with_what_they_share() -> None:
    serve = load(Settings, "generation", ENVIRONMENT)
    worker = load(WorkerSettings, "generation-worker", ENVIRONMENT)

    assert serve.backlog_limit == 100
    assert (worker.concurrency, worker.poll_interval_ms, worker.lease_seconds) == (4, 1_000, 600)
    assert (worker.job_timeout_seconds, worker.long_job_timeout_seconds) == (900, 1_800)
    assert worker.worker_id() == WorkerSettings.worker_id(worker) != ""


def test_inline_generation_needs_a_place_for_files() -> None:
    """GN60"""
    inline = {**ENVIRONMENT, "GESSO_GENERATION_MODE": "inline"}
    del inline["GESSO_OBJECTS_URL"]

    assert load(Settings, "generation", {**ENVIRONMENT, **inline}).generation_mode == "inline"
    with pytest.raises(WrongSettings, match=r"^GESSO_OBJECTS_URL is not set"):
        load(Settings, "generation", inline)


def test_the_mode_is_one_of_two() -> None:
    """GN60"""
    with pytest.raises(WrongSettings, match=r"^GESSO_GENERATION_MODE: 'both' is wrong"):
        load(Settings, "generation", {**ENVIRONMENT, "GESSO_GENERATION_MODE": "both"})


def test_an_inline_job_has_the_budget_of_a_worker_wherever_it_is_waited_for() -> None:
    """GN62"""
    named = {
        **ENVIRONMENT,
        "GESSO_GENERATION_MODE": "inline",
        "GESSO_GENERATION_WORKER_LONG_JOB_TIMEOUT_SECONDS": "77",
        "GESSO_TASKS_ADDRESS": "tasks:50053",
        "GESSO_PRESENCE_ADDRESS": "presence:50054",
        "GESSO_GATEWAY_LISTEN": "127.0.0.1:0",
        "GESSO_GATEWAY_ALLOWED_ORIGINS": "https://canvas.example",
    }

    assert load(Settings, "generation", named).worker_long_job_timeout_seconds == 77
    assert load(WorkerSettings, "generation-worker", named).long_job_timeout_seconds == 77
    assert load(GatewaySettings, "gateway", named).inline_seconds() == 77
    queue = {**named, "GESSO_GENERATION_MODE": "queue"}
    assert load(GatewaySettings, "gateway", queue).inline_seconds() is None


def test_a_worker_can_be_given_a_name() -> None:
    named = {**ENVIRONMENT, "GESSO_GENERATION_WORKER_ID": "worker-1"}

    assert load(WorkerSettings, "generation-worker", named).worker_id() == "worker-1"


@pytest.mark.parametrize(
    ("name", "value"),
    [("ID", ""), ("CONCURRENCY", "0"), ("LEASE_SECONDS", "3601"), ("POLL_INTERVAL_MS", "soon")],
)
def test_a_setting_that_cannot_be_is_named(name: str, value: str) -> None:
    wrong = {**ENVIRONMENT, f"GESSO_GENERATION_WORKER_{name}": value}

    with pytest.raises(WrongSettings) as caught:
        load(WorkerSettings, "generation-worker", wrong)

    (line,) = caught.value.lines
    assert line.startswith(f"GESSO_GENERATION_WORKER_{name}: ")


CONTROLLER = "GESSO_GENERATION_CONTROLLER"


def test_the_controller_has_the_defaults_of_the_rules() -> None:
    """GN43 GN46"""
    found = load(ControllerSettings, "generation-controller", ENVIRONMENT)

    assert (found.min_workers, found.max_workers, found.target_jobs_per_worker) == (1, 8, 2)
    assert (found.poll_interval_ms, found.scale_down_idle_rounds) == (10_000, 6)
    assert found.service_template == "gesso-generation-worker@{}.service"
    assert found.dry_run is False


def test_the_scaler_takes_the_setting_of_the_controller() -> None:
    """GN42"""
    changed = {**ENVIRONMENT, f"{CONTROLLER}_TARGET_JOBS_PER_WORKER": "5"}

    assert load(Settings, "generation", changed).controller_target_jobs_per_worker == 5
    assert load(ControllerSettings, "generation-controller", changed).target_jobs_per_worker == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MIN_WORKERS", "0"),
        ("MIN_WORKERS", "9"),
        ("TARGET_JOBS_PER_WORKER", "0"),
        ("POLL_INTERVAL_MS", "0"),
        ("SCALE_DOWN_IDLE_ROUNDS", "0"),
        ("DRY_RUN", "perhaps"),
        ("SERVICE_TEMPLATE", "gesso-generation-worker.service"),
        ("SERVICE_TEMPLATE", "*@{}.service"),
        ("SERVICE_TEMPLATE", "a b@{}.service"),
        ("SERVICE_TEMPLATE", "--force@{}.service"),
        ("SUPERVISOR", "here"),
    ],
)
def test_a_setting_of_the_controller_that_cannot_be_is_named(name: str, value: str) -> None:
    """GN43 GN46"""
    wrong = {**ENVIRONMENT, f"{CONTROLLER}_{name}": value}

    with pytest.raises(WrongSettings, match=f"{CONTROLLER}_{name}"):
        load(ControllerSettings, "generation-controller", wrong)
