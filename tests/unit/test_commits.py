"""Requests that wait for their canvas while the database does not answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from servicekit.errors import Unavailable
from services.canvas.commits import committing
from services.canvas.domain.edits import SetField
from services.canvas.domain.limits import Limits
from services.canvas.domain.mutation import Mutation
from services.canvas.feed import Feed
from services.canvas.store import Asked


class Away:
    """A database that says nothing, and then that it cannot."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.was_asked = asyncio.Event()
        self.gives_up = asyncio.Event()

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Self]:
        yield self

    opened = line

    async def gather(self, asked: Sequence[Asked]) -> None:
        self.asked.append([each.canvas_id for each in asked])
        self.was_asked.set()
        await self.gives_up.wait()
        raise Unavailable("away")


def renaming(canvas_id: str, edits: int = 1) -> Mutation:
    return Mutation(canvas_id, "m", 1, [SetField("title", "a", None)] * edits, [])


async def asked_together(*mutations: Mutation, gone: Sequence[str] = ()) -> list[list[str]]:
    """Of which canvases the database was asked at once, when requests for them came behind one.

    Those for the canvases of `gone` are given up before it is their turn.
    """
    away = Away()
    limits = Limits(canvases=1, json_bytes=1, assets=1)
    async with committing(away, Feed(), limits, lines=1) as commits:  # type: ignore[arg-type] # a fake
        first = asyncio.create_task(commits.apply("us_a", renaming("first")))
        await away.was_asked.wait()
        others = {
            mutation.canvas_id: asyncio.create_task(commits.apply("us_a", mutation))
            for mutation in mutations
        }
        await asyncio.sleep(0)
        for canvas_id in gone:
            others[canvas_id].cancel()
        away.gives_up.set()
        answers = await asyncio.gather(first, *others.values(), return_exceptions=True)

    assert [type(answer) for answer in answers[1:]] == [
        asyncio.CancelledError if mutation.canvas_id in gone else Unavailable
        for mutation in mutations
    ]
    return away.asked


async def test_what_nobody_waits_for_any_more_is_not_committed() -> None:
    """CV24"""
    asked = await asked_together(renaming("second"), renaming("third"), gone=["second"])

    assert asked == [["first"], ["third"]]


async def test_canvases_that_wait_are_committed_together() -> None:
    """CV24"""
    asked = await asked_together(*(renaming(f"c{number}") for number in range(70)))

    assert [len(canvases) for canvases in asked] == [1, 64, 6]
    assert [canvas_id for canvases in asked[1:] for canvas_id in canvases] == [
        f"c{number}" for number in range(70)
    ]


async def test_much_work_waits_for_the_next_transaction_and_comes_first_there() -> None:
    """CV24"""
    asked = await asked_together(
        renaming("a", 300), renaming("b", 300), renaming("c", 100), renaming("d", 200)
    )

    assert asked == [["first"], ["a"], ["b", "c"], ["d"]]


async def test_a_line_that_is_late_holds_up_nobody_else() -> None:
    """CV24"""
    away = Away()
    limits = Limits(canvases=1, json_bytes=1, assets=1)
    async with committing(away, Feed(), limits, lines=4) as commits:  # type: ignore[arg-type] # a fake
        first = asyncio.create_task(commits.apply("us_a", renaming("first")))
        await away.was_asked.wait()
        away.was_asked.clear()
        second = asyncio.create_task(commits.apply("us_a", renaming("second")))
        await asyncio.wait_for(away.was_asked.wait(), 5)
        away.gives_up.set()
        await asyncio.gather(first, second, return_exceptions=True)

    assert away.asked == [["first"], ["second"]]
