"""What waits for a stream of changes: in order, little, and never behind its cursor."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from servicekit.errors import Invalid, Unavailable
from servicekit.watches import (
    ENOUGH_WAITING,
    MAX_REQUESTED,
    MAX_TOLD,
    MAX_WAITING,
    Asked,
    Change,
    Found,
    Moving,
    News,
    Stream,
    TooFarBehind,
    Watches,
    catch_up,
)


class Shelf:
    """Items of accounts, and how often they were read."""

    def __init__(self) -> None:
        self.items: dict[str, Change[int]] = {}
        self.reads = 0
        self.failures = 0

    def put(self, account_id: str, item_id: str, item: int) -> None:
        self.items[item_id] = Change(account_id, item_id, item)

    async def newest(
        self, item_ids: Sequence[str], account_ids: Sequence[str]
    ) -> list[Change[int]]:
        self.reads += 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("Not now.")
        found = [self.items[item_id] for item_id in item_ids if item_id in self.items]
        return [change for change in found if change.account_id in account_ids]

    async def since(self, asked: Sequence[Asked], limit: int) -> Found[int]:  # noqa: ARG002 - it has few
        return Found(
            snapshot="7:7:",
            changes=[
                [each for each in self.items.values() if each.account_id == one.account_id]
                for one in asked
            ],
            rest=[None] * len(asked),
        )


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def watches(shelf: Shelf) -> AsyncIterator[Watches[int]]:
    made = Watches(shelf, look_seconds=600)
    reading = asyncio.create_task(made.read_forever())
    yield made
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def stream_of(shelf: Shelf) -> Stream[int]:
    return Stream(Watches(shelf, look_seconds=600))


async def taken(stream: Stream[int]) -> list[News[int]]:
    """What waits."""
    stream.end()
    async with asyncio.timeout(5):
        return [news async for some in stream.news() for news in some]


async def test_of_each_item_the_newest_state_is_told(shelf: Shelf) -> None:
    """GN22"""
    stream = stream_of(shelf)
    for number in range(10):
        stream.put(Change("us_a", "j1", number))
        stream.put(Change("us_a", "j2", -number))

    assert await taken(stream) == [News("us_a", 0, [9, -9], None)]


async def test_what_was_read_later_comes_later(shelf: Shelf) -> None:
    """GN22"""
    stream = stream_of(shelf)
    stream.put(Change("us_a", "j1", 1))
    stream.put(Change("us_a", "j1", 2), reader=5)
    stream.put(Change("us_a", "j2", 2))
    stream.put(Change("us_a", "j1", 3))

    assert await taken(stream) == [
        News("us_a", 5, [2], None),
        News("us_a", 0, [2, 3], None),
    ]


async def test_a_cursor_does_not_overtake_what_it_covers(shelf: Shelf) -> None:
    """GN23"""
    stream = stream_of(shelf)
    stream.put(Change("us_a", "j1", 1))
    stream.put_cursor("7")
    # The same state, read again: its notification came late.
    stream.put(Change("us_a", "j1", 1))
    stream.put(Change("us_a", "j2", 2))

    assert await taken(stream) == [
        News("us_a", 0, [1], None),
        News("", 0, [], "7"),
        News("us_a", 0, [2], None),
    ]


async def test_a_stream_that_is_too_far_behind_begins_anew(shelf: Shelf) -> None:
    """GN24"""
    stream = stream_of(shelf)
    for number in range(MAX_WAITING + 1):
        stream.put(Change("us_a", f"j{number}", number))

    # What was thrown away is not covered by a cursor that comes after it.
    stream.put_cursor("900")
    with pytest.raises(TooFarBehind):
        await anext(stream.news())


async def test_many_readers_with_much_to_catch_up_with_are_all_told(
    shelf: Shelf, watches: Watches[int]
) -> None:
    """GN23 GN24"""
    readers, items = 50, 201
    for number in range(items):
        shelf.put("us_a", f"j{number}", number)
    told: dict[int, int] = dict.fromkeys(range(1, readers + 1), 0)
    with watches.stream() as stream:
        for reader in told:
            stream.add("us_a", reader, "5")
        async with asyncio.timeout(10):
            async for some in stream.news():
                for news in some:
                    if news.reader:
                        told[news.reader] += len(news.items)
                if all(count >= items for count in told.values()):
                    break

    assert told == dict.fromkeys(told, items)


@pytest.mark.parametrize("cursor", ["0", "-1", "x", "0" * 19 + "19", "9" * 30, "1" * 5000])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    """GN24"""
    with pytest.raises(Invalid):
        catch_up("us_a", cursor)


async def test_messages_stay_small(shelf: Shelf) -> None:
    """GN24"""
    stream = stream_of(shelf)
    for number in range(2 * MAX_TOLD):
        stream.put(Change("us_a", f"j{number}", number))
    stream.end()

    sizes = [sum(len(news.items) for news in some) async for some in stream.news()]

    assert sizes == [MAX_TOLD, MAX_TOLD]


async def test_a_change_is_read_once_however_many_watch(
    shelf: Shelf, watches: Watches[int]
) -> None:
    """GN22"""
    with watches.stream() as one, watches.stream() as two:
        for stream in (one, two):
            for reader in (1, 2, 3):
                stream.add("us_a", reader, "")
        told = [stream.news() for stream in (one, two)]
        for each in told:
            assert [news.reader for news in await anext(each) if news.cursor][-3:] == [1, 2, 3]
        shelf.put("us_a", "j1", 1)
        watches.heard("j1 us_a\nj9 us_other")

        assert [await anext(each) for each in told] == [[News("us_a", 0, [1], None)]] * 2
    assert shelf.reads == 1
    assert len(watches) == 0


async def test_a_source_that_is_away_for_a_moment_loses_nothing(
    shelf: Shelf, watches: Watches[int]
) -> None:
    """GN23"""
    with watches.stream() as stream:
        stream.add("us_a", 1, "")
        told = stream.news()
        await anext(told)
        shelf.put("us_a", "j1", 1)
        shelf.failures = 1
        watches.heard("j1 us_a")

        async with asyncio.timeout(5):
            assert (await anext(told))[0] == News("us_a", 0, [1], None)


async def test_nothing_is_read_for_a_stream_that_does_not_read(
    shelf: Shelf, watches: Watches[int]
) -> None:
    """GN24"""
    with watches.stream() as slow, watches.stream() as quick:
        for number in range(ENOUGH_WAITING):
            slow.put(Change("us_b", f"j{number}", number))
        slow.add("us_a", 1, "")
        quick.add("us_a", 1, "")
        quick_news = quick.news()
        async with asyncio.timeout(5):
            while all(news.reader != 1 for news in await anext(quick_news)):
                pass
        waits = dict(slow.catching_up)
        slow_news = slow.news()
        async with asyncio.timeout(5):
            while all(news.reader != 1 for news in await anext(slow_news)):
                pass

    assert list(waits) == [1]


async def test_draining_ends_streams_and_takes_no_more(watches: Watches[int]) -> None:
    """GN24"""
    with watches.stream() as stream:
        watches.drain()
        with pytest.raises(Moving):
            await taken(stream)

    with pytest.raises(Moving), watches.stream():
        pass


async def test_a_request_has_a_size(shelf: Shelf) -> None:
    """GN24"""

    class Wide:
        add = ()
        remove_account_ids = ("us_a",) * (MAX_REQUESTED + 1)

    async def requests() -> AsyncIterator[Wide]:
        yield Wide()

    with pytest.raises(Invalid):
        await stream_of(shelf).hear(requests())
