"""The pure rules of tasks, and their settings."""

from dataclasses import replace

import pytest

from servicekit.errors import Invalid, TooMany
from servicekit.settings import WrongSettings, load, variables
from services.tasks.domain.tasks import Order, check_backlog
from services.tasks.settings import WorkerSettings

ORDER = Order(request_id="r", type="text", prompt="a lantern")
ENVIRONMENT = {
    "GESSO_INTERNAL_TOKENS": "a-token-of-the-tests",
    "GESSO_DATABASE_URL": "postgresql://localhost/gesso",
}


def test_orders_for_the_same_have_the_same_digest_whatever_their_request_id() -> None:
    """TK1"""
    assert replace(ORDER, request_id="other").digest() == ORDER.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "a lantern "},
        {"model": "m"},
        {"canvas_id": "x"},
        {"node_id": "x"},
        {"client_operation_id": "x"},
    ],
)
def test_orders_for_something_else_have_another_digest(change: dict[str, str]) -> None:
    """TK1"""
    assert replace(ORDER, **change).digest() != ORDER.digest()


def test_a_value_that_moves_to_another_field_is_another_order() -> None:
    """TK1"""
    orders = [replace(ORDER, canvas_id="x"), replace(ORDER, node_id="x")]

    assert orders[0].digest() != orders[1].digest()


def test_a_prompt_is_measured_in_bytes() -> None:
    """TK2"""
    replace(ORDER, prompt="灯" * 21_845)

    with pytest.raises(Invalid):
        replace(ORDER, prompt="灯" * 21_846)


def test_a_backlog_at_its_limit_takes_no_more() -> None:
    """TK3"""
    check_backlog(99, most=100)

    with pytest.raises(TooMany):
        check_backlog(100, most=100)


def test_a_lease_that_one_missed_renewal_would_lose_is_refused_at_the_start() -> None:
    """TK6"""
    with pytest.raises(WrongSettings) as caught:
        load(
            WorkerSettings,
            "tasks-worker",
            {**ENVIRONMENT, "GESSO_TASKS_WORKER_LEASE_SECONDS": "20"},
        )

    assert caught.value.lines[0].startswith("GESSO_TASKS_WORKER_RENEW_SECONDS")
    assert "Example: 6.66" in caught.value.lines[0]


def test_a_worker_is_set_up_by_variables_of_its_own() -> None:
    settings = load(
        WorkerSettings, "tasks-worker", {**ENVIRONMENT, "GESSO_TASKS_WORKER_CONCURRENCY": "7"}
    )

    names = [variable.name for variable in variables(WorkerSettings, "tasks-worker")]
    assert settings.concurrency == 7
    assert "GESSO_TASKS_WORKER_LEASE_SECONDS" in names
