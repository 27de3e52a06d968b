"""The reasons of failures: one list, which is part of the API."""

import pkgutil
from importlib import import_module

import pytest

import gateway
import services
from gateway.problems import REASONS, status_of
from servicekit.errors import FAMILIES, Failure

# Met by our own processes only: they end an attempt, a stream or a socket, or become a sentence
# of a task or job. No answer to a browser carries them.
INSIDE = {
    "call_not_uncertain",
    "lease_fenced",
    "lease_lost",
    "malformed_frame",
    "model_refused",
    "model_unavailable",
    "presence_session_id_reused",
    "presence_session_unknown",
    "timed_out",
    "text_too_long",
    "unknown_model",
}
# A family's own word, where no class of ours says more.
UNUSED = {"conflict", "failed_precondition"}


def _name(kind: type[Failure]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _failures() -> set[type[Failure]]:
    """Every class of failure in the gateway and the services."""
    for package in (gateway, services):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".migrations" not in module.name:
                import_module(module.name)
    found: set[type[Failure]] = set()
    waiting: list[type[Failure]] = [Failure]
    while waiting:
        kind = waiting.pop()
        found.add(kind)
        waiting += kind.__subclasses__()
    return found


FAILURES: list[type[Failure]] = sorted(_failures(), key=_name)


@pytest.mark.parametrize("kind", FAILURES)
def test_every_reason_that_a_browser_can_meet_is_in_the_table(kind: type[Failure]) -> None:
    """GW5"""
    assert kind.reason in REASONS.keys() | INSIDE | UNUSED


def test_every_reason_in_the_table_can_be_met() -> None:
    """GW5"""
    assert REASONS.keys() <= {kind.reason for kind in FAILURES}


def test_statuses_fit_their_families() -> None:
    """GW5"""
    for kind in FAILURES:
        failure = Failure.__new__(kind)
        Failure.__init__(failure, "x", reason=kind.reason)

        assert 400 <= status_of(failure) < 600
    assert len(FAMILIES) == 8
