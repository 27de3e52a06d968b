"""How a process is told which role it has."""

import pytest

from servicekit.process import CANNOT_START, chosen


@pytest.mark.parametrize(("arguments", "code"), [([], 7), (["serve"], 7), (["worker"], 8)])
def test_the_role_that_is_named_runs(arguments: list[str], code: int) -> None:
    assert chosen("services.tasks", arguments, serve=lambda: 7, worker=lambda: 8) == code


@pytest.mark.parametrize("arguments", [["work"], ["serve", "worker"], ["--help"]])
def test_another_role_is_told_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = chosen("services.tasks", arguments, serve=lambda: 7, worker=lambda: 8)

    assert code == CANNOT_START
    assert capsys.readouterr().err == "usage: python -m services.tasks [serve | worker]\n"
