"""The units of deploy/systemd name commands, settings and units that exist."""

import re
from collections import defaultdict
from pathlib import Path

import click
import pytest

from servicekit.settings import load
from services.generation.domain.scaling import Limits
from services.generation.settings import ControllerSettings, WorkerSettings
from suite import roles
from suite.cli import gesso
from suite.commands.settings import all_variables
from suite.roles import KINDS, RoleKind

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
PROGRAM = "/opt/gesso/bin/gesso"
SECTIONS = {"Unit", "Service", "Install"}
# Those of other packages.
FOREIGN = {"network-online.target", "multi-user.target"}

Unit = dict[str, dict[str, list[str]]]


def parsed(path: Path) -> Unit:
    """The values of a unit file by section and key, which may come several times."""
    unit: Unit = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, equals, value = line.partition("=")
        assert section, line
        assert equals, line
        unit[section][key].append(value)
    return unit


def environment(lines: list[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


EXAMPLE = environment((FOLDER / "gesso.env.example").read_text().splitlines())


def kind_of(unit: Unit) -> RoleKind | None:
    """The role that a unit runs, None if another command."""
    words = unit["Service"]["ExecStart"][0].split()[1:]
    found = [kind for kind in KINDS if [kind.module.rpartition(".")[2], kind.verb] == words]
    return found[0] if found else None


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_there_is(path: Path) -> None:
    """GN46"""
    unit = parsed(path)
    program, *words = unit["Service"]["ExecStart"][0].split()
    command: click.Command | None = gesso
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands.get(word)

    assert program == PROGRAM
    assert unit.keys() <= SECTIONS
    assert isinstance(command, click.Command)
    assert not isinstance(command, click.Group)


def test_every_role_has_a_unit() -> None:
    """GN46"""
    assert {kind_of(parsed(path)) for path in UNITS} - {None} == set(KINDS)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_with_the_example_and_has_the_time_to_drain(path: Path) -> None:
    """GN46"""
    unit = parsed(path)
    kind = kind_of(unit)
    if kind is None:
        assert unit["Service"]["Type"] == ["oneshot"]
        return
    own = environment(unit["Service"]["Environment"])
    settings = load(kind.settings(), kind.name, EXAMPLE | own)

    assert int(unit["Service"]["TimeoutStopSec"][0]) > settings.drain_seconds
    assert unit["Service"]["KillSignal"] == ["SIGTERM"]
    assert unit["Service"]["Restart"] == ["always"]
    assert unit["Service"]["Type"] == ["notify"]
    assert own.keys() <= known(kind)


def test_the_example_has_only_settings_that_there_are() -> None:
    """GN46"""
    assert EXAMPLE.keys() <= {variable.name for variable in all_variables()}


def known(kind: RoleKind) -> set[str]:
    """What a role reads: a shared setting may be given for it alone."""
    prefix = f"GESSO_{kind.name.replace('-', '_').upper()}_"
    return {
        name
        for variable in all_variables()
        for name in (variable.name, prefix + variable.name.removeprefix("GESSO_"))
    }


def test_a_worker_has_as_long_as_its_longest_job() -> None:
    """GN46"""
    unit = parsed(FOLDER / "gesso-generation-worker@.service")
    own = environment(unit["Service"]["Environment"])
    settings = load(WorkerSettings, roles.GENERATION_WORKER.name, EXAMPLE | own)

    assert settings.drain_seconds > settings.long_job_timeout_seconds
    assert settings.drain_seconds > settings.job_timeout_seconds


def test_units_wait_for_units_that_there_are() -> None:
    """GN46"""
    names = {path.name for path in FOLDER.iterdir()} | FOREIGN
    for path in UNITS:
        unit = parsed(path)
        named = {
            name
            for section, key in [
                ("Unit", "After"),
                ("Unit", "Wants"),
                ("Unit", "PartOf"),
                ("Install", "WantedBy"),
            ]
            for value in unit[section][key]
            for name in value.split()
        }

        assert named
        assert named <= names, path.name


def test_the_controller_may_start_and_stop_its_workers_and_nothing_else() -> None:
    """GN46"""
    settings = load(ControllerSettings, roles.GENERATION_CONTROLLER.name, EXAMPLE)
    rules = (FOLDER / "gesso-generation-controller.rules").read_text()
    (pattern,) = re.findall(r"/(\^.+\$)/\.test\(unit\)", rules)
    allowed = re.compile(pattern)

    assert settings.limits() == Limits(
        min_workers=1, max_workers=8, jobs_per_worker=2, idle_rounds=6
    )
    assert settings.service_template.format("") in {path.name for path in UNITS}
    assert all(allowed.match(settings.service_template.format(number)) for number in (1, 8, 10))
    assert not allowed.match("gesso-gateway.service")
    assert not allowed.match(settings.service_template.format("*"))
    assert 'subject.user !== "gesso"' in rules
