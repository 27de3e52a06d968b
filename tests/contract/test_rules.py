"""Every numbered rule of docs/spec is held by a test that names it, and no test names another."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = sorted((ROOT / "docs" / "spec").glob("*.md"))

_RULE = re.compile(r"^(?:- )?\*\*([A-Z]{2}\d+)\*\*", re.MULTILINE)
_NAMED = re.compile(r"\b([A-Z]{2})(\d+)(?: to [A-Z]{2}(\d+))?\b")


def _rules(page: Path) -> list[str]:
    return _RULE.findall(page.read_text())


def _named() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path == Path(__file__):
            continue
        for docstring in re.findall(r'"""(.*?)"""', path.read_text(), re.DOTALL):
            for prefix, first, last in _NAMED.findall(docstring):
                numbers = range(int(first), int(last or first) + 1)
                found.update(f"{prefix}{number}" for number in numbers)
    return found


@pytest.mark.parametrize("page", SPEC, ids=lambda page: page.stem)
def test_every_rule_has_a_test(page: Path) -> None:
    rules = _rules(page)

    assert rules, f"{page.name} states no rule"
    assert [rule for rule in rules if rule not in _named()] == []


def test_rules_are_numbered_once_each() -> None:
    rules = [rule for page in SPEC for rule in _rules(page)]

    assert len(rules) == len(set(rules))


def test_no_test_names_a_rule_that_is_not_there() -> None:
    rules = {rule for page in SPEC for rule in _rules(page)}
    prefixes = {rule[:2] for rule in rules}

    assert {name for name in _named() if name[:2] in prefixes} <= rules
