"""Lookups that share queries."""

import asyncio
from collections.abc import Sequence

import pytest

from servicekit.lookups import MAX_KEYS, Lookups


class Table:
    """A table whose queries wait until they are let through."""

    def __init__(self) -> None:
        self.values: dict[int, str] = {}
        self.queries: list[list[int]] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.failure: Exception | None = None

    async def read(self, keys: Sequence[int]) -> dict[int, str]:
        self.queries.append(list(keys))
        found = {key: self.values[key] for key in keys if key in self.values}
        self.began.set()
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return found


async def test_those_who_come_while_a_query_runs_share_the_next() -> None:
    table = Table()
    table.values = {1: "one", 2: "two"}
    lookups = Lookups(table.read)
    first = asyncio.create_task(lookups.get(1))
    await table.began.wait()
    others = [asyncio.create_task(lookups.get(key)) for key in (1, 2, 2, 3)]
    await asyncio.sleep(0)
    table.values[1] = "another"
    table.go_on.set()

    assert await first == "one"
    assert await asyncio.gather(*others) == ["another", "two", "two", None]
    assert table.queries == [[1], [1, 2, 3]]


async def test_nothing_is_remembered() -> None:
    table = Table()
    table.go_on.set()
    lookups = Lookups(table.read)

    before = await lookups.get(1)
    table.values[1] = "one"

    assert (before, await lookups.get(1)) == (None, "one")


async def test_who_goes_leaves_the_answer_to_the_others() -> None:
    table = Table()
    table.values = {1: "one"}
    lookups = Lookups(table.read)
    asks = [asyncio.create_task(lookups.get(1)) for _ in range(2)]
    await table.began.wait()
    asks[0].cancel()
    table.go_on.set()

    assert await asks[1] == "one"
    with pytest.raises(asyncio.CancelledError):
        await asks[0]


async def test_a_failure_is_that_of_all_who_asked_and_of_nobody_after() -> None:
    table = Table()
    table.failure = ConnectionError("gone")
    table.go_on.set()
    lookups = Lookups(table.read)

    asked = await asyncio.gather(lookups.get(1), lookups.get(2), return_exceptions=True)
    table.failure = None

    assert [type(answer) for answer in asked] == [ConnectionError, ConnectionError]
    assert await lookups.get(1) is None


async def test_a_query_has_so_many_keys_at_most() -> None:
    table = Table()
    table.go_on.set()
    lookups = Lookups(table.read)

    await asyncio.gather(*(lookups.get(key) for key in range(MAX_KEYS + 1)))

    assert [len(query) for query in table.queries] == [MAX_KEYS, 1]
