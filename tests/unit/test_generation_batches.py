"""Batches, and those who wait for work."""

import asyncio
from collections.abc import Sequence

import pytest

from servicekit.errors import Unavailable
from services.generation.batches import MAX_ITEMS, Batches, settling
from services.generation.wakeups import Waiters


class Ledger:
    """Settles numbers by doubling them, once it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let = asyncio.Event()
        self.let.set()

    async def settle(self, numbers: Sequence[int]) -> list[int]:
        """Fails with every batch that holds a 13, and has a fault at 666."""
        self.batches.append(list(numbers))
        await self.let.wait()
        if 13 in numbers:
            raise Unavailable("unlucky")
        if 666 in numbers:
            raise ZeroDivisionError
        return [2 * number for number in numbers]


async def test_what_nobody_waits_for_any_more_is_not_settled() -> None:
    """GN5"""
    ledger = Ledger()
    batches = Batches(ledger.settle)
    gone = asyncio.create_task(batches.outcomes([1]))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])

    async with settling(batches):
        assert await batches.outcomes([2]) == [4]

    assert ledger.batches == [[2]]


async def test_what_comes_while_statements_are_in_flight_goes_together() -> None:
    """GN9"""
    ledger = Ledger()
    batches = Batches(ledger.settle)
    ledger.let.clear()
    async with settling(batches):
        asked = [asyncio.create_task(batches.outcomes([number])) for number in range(1_000, 1_300)]
        for _ in range(5):
            await asyncio.sleep(0)
        ledger.let.set()
        answers = await asyncio.gather(*asked)

    assert answers == [[2 * number] for number in range(1_000, 1_300)]
    assert len(ledger.batches) < 6
    assert max(map(len, ledger.batches)) <= MAX_ITEMS


async def test_an_item_that_fails_fails_alone() -> None:
    """GN9"""
    ledger = Ledger()
    batches = Batches(ledger.settle)
    async with settling(batches):
        answers = await asyncio.gather(
            batches.outcomes([1, 2]), batches.outcomes([13]), return_exceptions=True
        )
        with pytest.raises(ZeroDivisionError):
            await batches.outcomes([666])
        after = await batches.outcomes([4])

    assert answers[0] == [2, 4]
    assert isinstance(answers[1], Unavailable)
    assert after == [8]


async def test_a_call_that_came_in_between_is_not_slept_through() -> None:
    """GN18"""
    waiters = Waiters()
    calls = waiters.calls
    waiters.wake()

    async with asyncio.timeout(5):
        await waiters.wait(60, since=calls)


async def test_one_call_wakes_the_one_that_waited_longest() -> None:
    """GN18"""
    waiters = Waiters()
    first = asyncio.create_task(waiters.wait(60, since=0))
    second = asyncio.create_task(waiters.wait(60, since=0))
    await asyncio.sleep(0)

    waiters.wake()
    await first

    assert not second.done()
    waiters.wake_all()
    await second
