"""Settings that say what is wrong with them."""

from typing import Annotated

import pytest

from servicekit.settings import ServerSettings, Settings, WrongSettings, load, setting, variables


class Group(Settings, frozen=True, kw_only=True):
    """A group that several services have."""

    depth: Annotated[int, setting("How deep.", example="3", shared=True, ge=1)] = 2


class Example(ServerSettings, frozen=True, kw_only=True):
    """What an example service must know."""

    group: Group
    secret: Annotated[str, setting("A secret.", example="x", secret=True, min_length=4)] = "none"


GOOD = {"GESSO_INTERNAL_TOKENS": "a" * 16, "GESSO_CANVAS_LISTEN": "127.0.0.1:1"}


def test_defaults_stand_and_shared_variables_serve_all() -> None:
    assert load(Example, "canvas", GOOD).group.depth == 2
    assert load(Example, "canvas", {**GOOD, "GESSO_DEPTH": "5"}).group.depth == 5
    own = {**GOOD, "GESSO_DEPTH": "5", "GESSO_CANVAS_DEPTH": "7"}
    assert load(Example, "canvas", own).group.depth == 7


def test_every_wrong_variable_gets_one_line() -> None:
    environ = {
        **GOOD,
        "GESSO_DEPTH": "0",
        "GESSO_CANVAS_LISTEN": "127.0.0.1:99999",
        "GESSO_LOG_LEVEL": "loud",
    }

    with pytest.raises(WrongSettings) as caught:
        load(Example, "canvas", environ)

    names = [line.partition(":")[0] for line in caught.value.lines]
    assert names == ["GESSO_LOG_LEVEL", "GESSO_CANVAS_LISTEN", "GESSO_DEPTH"]
    assert "a whole number >= 1" in caught.value.lines[2]
    assert "Example: GESSO_DEPTH=3" in caught.value.lines[2]


def test_what_is_missing_is_named_with_an_example() -> None:
    with pytest.raises(WrongSettings) as caught:
        load(Example, "canvas", {})

    assert [line.split()[0] for line in caught.value.lines] == [
        "GESSO_INTERNAL_TOKENS",
        "GESSO_CANVAS_LISTEN",
    ]


def test_a_secret_is_never_shown() -> None:
    with pytest.raises(WrongSettings) as caught:
        load(Example, "canvas", {**GOOD, "GESSO_CANVAS_SECRET": "abc"})

    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("tokens", ["short", "a" * 16 + ", " + "b" * 16, "a" * 16 + ",short"])
def test_tokens_must_be_long(tokens: str) -> None:
    with pytest.raises(WrongSettings):
        load(Example, "canvas", {**GOOD, "GESSO_INTERNAL_TOKENS": tokens})


def test_two_tokens_are_accepted_and_the_first_is_shown() -> None:
    both = f"{'a' * 16},{'b' * 16}"

    settings = load(Example, "canvas", {**GOOD, "GESSO_INTERNAL_TOKENS": both})

    assert settings.tokens() == ("a" * 16, "b" * 16)


def test_a_setting_that_need_not_be_set_has_its_limits_when_it_is() -> None:
    there = {**GOOD, "GESSO_CANVAS_METRICS_LISTEN": "127.0.0.1:9100"}

    assert load(Example, "canvas", GOOD).metrics_listen is None
    assert load(Example, "canvas", there).metrics_listen == "127.0.0.1:9100"
    with pytest.raises(WrongSettings):
        load(Example, "canvas", {**GOOD, "GESSO_CANVAS_METRICS_LISTEN": "9100"})


def test_the_table_of_variables_names_groups_too() -> None:
    names = [variable.name for variable in variables(Example, "canvas")]

    assert "GESSO_DEPTH" in names
    assert "GESSO_CANVAS_SECRET" in names
