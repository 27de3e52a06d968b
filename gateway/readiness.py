"""Whether the suite can work: every service and store, asked at once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from gateway.endpoints import Output
from servicekit.errors import Failure

CHECK_SECONDS = 3.0

State = Literal["ok", "degraded", "unavailable"]
Check = Callable[[], Awaitable[None]]


class Readiness(Output, frozen=True):
    """What `/readyz` says: `ok`, or what is wrong, of each service and store."""

    status: State
    checks: dict[str, str]


async def readiness(checks: Mapping[str, Check], *, needed: frozenset[str]) -> Readiness:
    """The state of everything in `checks`.

    Without one of `needed` no request can be answered: `unavailable`; without another one some
    can: `degraded`.
    """
    names = list(checks)
    results = await asyncio.gather(*(_result(checks[name]) for name in names))
    found = dict(zip(names, results, strict=True))
    wrong = {name for name, result in found.items() if result != "ok"}
    status: State = "unavailable" if wrong & needed else "degraded" if wrong else "ok"
    return Readiness(status=status, checks=found)


async def _result(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except Failure as failure:
        return failure.detail
    except TimeoutError:
        return "No answer in time."
    return "ok"
