"""What can be asked of each kind of job, checked before anything is charged (GN1)."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from services.generation.domain.failures import WrongRequest

MAX_PROMPT_LENGTH = 4_000
MIN_SIDE, MAX_SIDE = 64, 4_096
MAX_COUNT = 8
MAX_REFERENCES = 8
MAX_ID_LENGTH = 200
LABEL_LENGTH = 80
# What is wrong has to fit the trailer of an answer.
MAX_WRONG = 20
SUBTYPES = ("plain", "style_guide", "character", "ui_design", "promo", "quick_edit")
DEFAULT_MODEL = "studio"

# No canvas would take it, and what no canvas takes is given back with the picture drawn.
_MEDIA = re.compile(r"\s*data:(image|video|audio)/", re.IGNORECASE)
_SIZE = re.compile(r"([1-9][0-9]{1,3})x([1-9][0-9]{1,3})")


@dataclass(frozen=True)
class ImageParams:
    """What `editor_image_generation` makes."""

    prompt: str
    size: str = "1024x1024"
    count: int = 1
    transparent: bool = False
    subtype: str = "plain"
    references: tuple[str, ...] = ()
    seed: int | None = None
    model: str = DEFAULT_MODEL

    @property
    def pixels(self) -> tuple[int, int]:
        """Width and height."""
        width, _, height = self.size.partition("x")
        return int(width), int(height)

    @property
    def label(self) -> str:
        """The start of the prompt, on one line."""
        line = " ".join(self.prompt.split())
        return line if len(line) <= LABEL_LENGTH else f"{line[: LABEL_LENGTH - 1]}…"

    def as_json(self) -> str:
        """The JSON that `image_params` reads; equal for requests that mean the same."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(said, ensure_ascii=False, sort_keys=True)


def image_params(value: Any) -> ImageParams:
    """Reads the params of an image.

    Raises `WrongRequest` that names each member that is unknown or not as it should be.
    """
    if not isinstance(value, dict):
        raise WrongRequest({"params": "must be a JSON object"})
    wrong: dict[str, str] = {}
    if "prompt" not in value:
        wrong["params.prompt"] = _EXPECTED["prompt"].words
    for name, member in value.items():
        expected = _EXPECTED.get(name)
        if expected is None:
            wrong[f"params.{name[:MAX_ID_LENGTH]}"] = "is not known"
        elif not expected.holds(member):
            wrong[f"params.{name}"] = expected.words
    if wrong:
        raise WrongRequest(dict(list(wrong.items())[:MAX_WRONG]))
    return ImageParams(**{**value, "references": tuple(value.get("references", ()))})


def request_digest(*parts: Any) -> bytes:
    """Equal for requests whose parts, JSON values, are equal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class _Expected:
    holds: Callable[[Any], bool]
    words: str


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and not value.isspace() and value != ""


def _is_size(value: Any) -> bool:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return found is not None and all(MIN_SIDE <= int(side) <= MAX_SIDE for side in found.groups())


def _is_references(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_REFERENCES
        and all(_is_text(item, MAX_ID_LENGTH) for item in value)
    )


_EXPECTED = {
    "prompt": _Expected(
        lambda value: _is_text(value, MAX_PROMPT_LENGTH) and not _MEDIA.match(value),
        f"must be text of 1 to {MAX_PROMPT_LENGTH} characters that is not blank, nor a data URL",
    ),
    "size": _Expected(
        _is_size, f"must be WxH, each {MIN_SIDE} to {MAX_SIDE} pixels, for example 1024x1024"
    ),
    "count": _Expected(
        lambda value: _is_integer(value, 1, MAX_COUNT), f"must be a whole number, 1 to {MAX_COUNT}"
    ),
    "transparent": _Expected(lambda value: isinstance(value, bool), "must be true or false"),
    "subtype": _Expected(lambda value: value in SUBTYPES, f"must be one of {', '.join(SUBTYPES)}"),
    "references": _Expected(
        _is_references, f"must be a list of at most {MAX_REFERENCES} resource ids"
    ),
    "seed": _Expected(
        lambda value: _is_integer(value, -(2**63), 2**63 - 1), "must be a whole number of 64 bits"
    ),
    "model": _Expected(lambda value: _is_text(value, MAX_ID_LENGTH), "must be the name of a model"),
}
