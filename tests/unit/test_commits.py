"""Requests that wait for their canvas while the database does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from servicekit.errors import Unavailable
from services.canvas.commits import committing
from services.canvas.domain.edits import SetField
from services.canvas.domain.limits import Limits
from services.canvas.domain.mutation import Mutation
from services.canvas.feed import Feed


class Away:
    """A database that says nothing, and then that it cannot."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_asked = asyncio.Event()
        self.gives_up = asyncio.Event()

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Self]:
        yield self

    @asynccontextmanager
    async def opened(self, _account_id: str, canvas_id: str) -> AsyncIterator[None]:
        self.asked.append(canvas_id)
        self.was_asked.set()
        await self.gives_up.wait()
        if self.gives_up.is_set():
            raise Unavailable("away")
        yield

    locked = opened


def renaming(canvas_id: str) -> Mutation:
    return Mutation(canvas_id, "m", 1, [SetField("title", "a", None)], [])


async def test_what_nobody_waits_for_any_more_is_not_committed() -> None:
    """CV24"""
    away = Away()
    limits = Limits(canvases=1, json_bytes=1, assets=1)
    async with committing(away, Feed(), limits, lines=1) as commits:  # type: ignore[arg-type] # a fake
        first = asyncio.create_task(commits.apply("us_a", renaming("first")))
        await away.was_asked.wait()
        second = asyncio.create_task(commits.apply("us_a", renaming("second")))
        third = asyncio.create_task(commits.apply("us_a", renaming("third")))
        await asyncio.sleep(0)
        second.cancel()
        away.gives_up.set()
        answers = await asyncio.gather(first, second, third, return_exceptions=True)

    assert [type(answer) for answer in answers] == [
        Unavailable,
        asyncio.CancelledError,
        Unavailable,
    ]
    assert away.asked == ["first", "third"]
