"""What is asked for, checked whole before anything is charged (GN1)."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from services.generation.domain.failures import WrongRequest
from services.generation.domain.jobs import KINDS, Draft, Target
from services.generation.domain.params import image_params, request_digest
from services.generation.domain.prices import price_of

MAX_NAME_LENGTH = 200
MAX_PRIORITY = 100

_NAME = f"must have 1 to {MAX_NAME_LENGTH} characters, none of them U+0000"
_CANVAS_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True)
class Request:
    """A job as it is asked for. `params` is a JSON value; without a target nothing is shown."""

    dedupe_key: str
    kind: str
    params: Any
    canvas_id: str
    target: Target | None
    priority: int = 0


def drafted(request: Request) -> Draft:
    """The job that a request asks for, with its price. Raises `WrongRequest`."""
    wrong = dict(_wrong(request))
    if wrong:
        raise WrongRequest(wrong)
    params = image_params(request.params)
    price = price_of(request.kind, params.model)
    text = params.as_json()
    target = asdict(request.target) if request.target else None
    return Draft(
        dedupe_key=request.dedupe_key,
        kind=request.kind,
        params=text,
        label=params.label,
        canvas_id=request.canvas_id,
        target=request.target,
        channel=price.channel,
        priority=request.priority,
        price_micros=price.of(params.count),
        digest=request_digest(request.kind, text, request.canvas_id, target),
    )


def _wrong(request: Request) -> list[tuple[str, str]]:
    wrong = []
    if request.kind not in KINDS:
        wrong.append(("kind", f"must be one of {', '.join(KINDS)}"))
    if not _is_name(request.dedupe_key):
        wrong.append(("dedupeKey", _NAME))
    if not _CANVAS_ID.fullmatch(request.canvas_id):
        wrong.append(("canvasId", "must be 1 to 80 of letters, digits, - and _"))
    if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
        wrong.append(("priority", f"must be {-MAX_PRIORITY} to {MAX_PRIORITY}"))
    if request.target is not None:
        node_id, position = request.target.node_id, request.target.position
        if node_id is not None and not _is_name(node_id):
            wrong.append(("canvasCompletion.placeholderNodeId", _NAME))
        if not (math.isfinite(position.x) and math.isfinite(position.y)):
            wrong.append(("canvasCompletion.position", "must be two finite numbers"))
    return wrong


def _is_name(text: str) -> bool:
    # PostgreSQL keeps no U+0000, and one item must not be in the way of a list.
    return 1 <= len(text) <= MAX_NAME_LENGTH and "\0" not in text
