"""What a prompt tells the studio to do besides drawing.

`!fail`, `!slow=8`, `!429=2`, `!hang`, `!cut`.
"""

import re
from dataclasses import dataclass

MAX_SLOW_SECONDS = 3_600.0
MAX_REFUSALS = 100

_DIRECTIVE = re.compile(
    r"(?<!\S)!(?:(?P<fail>fail)|(?P<hang>hang)|(?P<cut>cut)|slow=(?P<slow>\d{1,4}(?:\.\d{1,3})?)"
    r"|429=(?P<refusals>\d{1,3}))(?!\S)"
)


@dataclass(frozen=True)
class Directives:
    """What a prompt directs, and the prompt without it."""

    prompt: str
    fails: bool = False
    hangs: bool = False
    is_cut: bool = False
    slow_seconds: float = 0
    refusals: int = 0


def directives_of(prompt: str) -> Directives:
    """Reads the directives of a prompt; words that only look like one stay in it."""
    found = [match.groupdict() for match in _DIRECTIVE.finditer(prompt)]
    slow = sum(float(words["slow"] or 0) for words in found)
    refusals = sum(int(words["refusals"] or 0) for words in found)
    return Directives(
        prompt=_DIRECTIVE.sub("", prompt).strip(),
        fails=any(words["fail"] for words in found),
        hangs=any(words["hang"] for words in found),
        is_cut=any(words["cut"] for words in found),
        slow_seconds=min(slow, MAX_SLOW_SECONDS),
        refusals=min(refusals, MAX_REFUSALS),
    )
