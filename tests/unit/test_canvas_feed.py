"""What the canvas service keeps for presence, however long nobody takes it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from services.canvas import feed as canvas_feed
from services.canvas.batch import Done, Found, Outcome, Version
from services.canvas.domain.mutation import Receipt
from services.canvas.domain.operations import NOTHING_WRITTEN, Canvas, Head
from services.canvas.feed import MAX_BATCH, MAX_NEWS, MAX_OPERATIONS_BYTES, Feed

KEY = ("us_a", "c")


def canvas(revision: int) -> Canvas:
    head = Head(revision, {}, node_count=0, next_order=0, size_bytes=0, content_hash=revision)
    return Canvas("c", head, {}, {}, frozenset())


def commit(
    feed: Feed, revision: int, *operations: Any, canvas_id: str = "c", incarnation: int = 1
) -> None:
    """Tells of a transaction with a request for each operation, which led to a revision."""
    base = revision - len(operations)
    done = [
        Done(f"m{base + 1 + index}", Receipt(b"", revision, b""), json.dumps([operation]))
        for index, operation in enumerate(operations)
    ]
    version = Version(key=incarnation, revision=base, lease_version=0) if base else None
    found = Found({}, canvas(base), {}, version, datetime.now(UTC))
    outcome = Outcome(canvas(revision), NOTHING_WRITTEN, done, [])
    feed.changed("us_a", canvas_id, found, outcome)


async def taken(feed: Feed) -> list[tuple[int, int, Any, str]]:
    return [
        (each.base_revision, each.revision, json.loads(each.operations or "null"), each.mutation_id)
        for each in await feed.batch()
    ]


async def test_requests_of_one_transaction_are_told_together() -> None:
    """PR10"""
    feed = Feed()
    commit(feed, 1, "one")
    commit(feed, 3, "two", "three")

    assert await taken(feed) == [(0, 1, ["one"], "m1"), (1, 3, ["two", "three"], "")]


@pytest.mark.parametrize(
    ("operation", "count"), [("x" * (MAX_OPERATIONS_BYTES // 4), 4), ("x", MAX_NEWS + 1)]
)
async def test_of_much_that_waits_only_the_newest_revision_is_told(
    operation: str, count: int
) -> None:
    """PR10"""
    feed = Feed()
    for revision in range(1, count + 1):
        commit(feed, revision, operation)
    feed.leased(*KEY)

    [news, lease] = await feed.batch()

    assert (news.revision, news.operations, news.content_hash) == (count, b"", f"{count:016x}")
    assert (lease.revision, lease.leases_changed) == (0, True)


async def test_one_long_request_is_told_by_its_revision() -> None:
    """PR10"""
    feed = Feed()
    commit(feed, 1, "x" * MAX_OPERATIONS_BYTES)

    assert await taken(feed) == [(0, 1, None, "m1")]


async def test_operations_of_all_canvases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """PR10"""
    monkeypatch.setattr(canvas_feed, "MAX_WAITING_BYTES", 10_000)
    feed = Feed()
    for number in range(100):
        commit(feed, 1, "x" * 1_000, canvas_id=f"c{number}")

    first = await taken(feed)
    commit(feed, 1, "x")
    then = await taken(feed)

    assert [operations is not None for _, _, operations, _ in first] == [True] * 9 + [False] * 91
    assert [operations for _, _, operations, _ in then] == [["x"]]


async def test_canvases_are_told_in_turn_and_none_twice() -> None:
    """PR10"""
    feed = Feed()
    for number in range(MAX_BATCH + 1):
        commit(feed, 1, "x", canvas_id=f"c{number}")

    assert [len(await feed.batch()) for _ in range(2)] == [MAX_BATCH, 1]


async def test_that_a_canvas_is_gone_is_told_however_much_waits() -> None:
    """PR18"""
    feed = Feed()
    for revision in range(1, MAX_NEWS + 1):
        commit(feed, revision, "x")
    feed.deleted(*KEY, 1)

    (told,) = await feed.batch()

    assert (told.deleted, told.incarnation, told.revision) == (True, 1, MAX_NEWS)


async def test_of_much_that_waits_of_two_canvases_of_one_id_the_later_one_is_told() -> None:
    """PR18"""
    feed = Feed()
    commit(feed, 900, "x")
    feed.deleted(*KEY, 1)
    for revision in range(2, MAX_NEWS + 1):
        commit(feed, revision, "x", incarnation=2)

    (told,) = await feed.batch()

    assert (told.deleted, told.incarnation, told.revision) == (False, 2, MAX_NEWS)
