"""What the windows of a gateway are told of one another, and of those at other gateways."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from gateway.pace import MUCH_PER_SECOND, Ticks
from gateway.rooms.audience import Audience
from gateway.rooms.peers import NOWHERE, Peer
from gateway.rooms.room import Place, Room
from tests.support.lines import text_of

PLACE = Place("us_a", "c")


class Ear:
    """A window that keeps what it hears."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def show(self, message: bytes) -> None:
        value = json.loads(text_of(message))
        assert value["type"] in ("peer", "peers", "leave")
        self.frames.append(value)

    def begin(self, welcome: bytes) -> None:
        value = json.loads(text_of(welcome))
        assert value["type"] == "welcome"
        self.frames.append(value)

    def hear(self, text: bytes) -> None:
        value = json.loads(text)
        assert value["type"] in ("heartbeat", "invalidate")
        self.frames.append(value)

    def taken(self) -> list[Any]:
        frames, self.frames = self.frames, []
        return frames


class Windows:
    """A room, and windows in it by name."""

    def __init__(self) -> None:
        self.ticks = Ticks(asyncio.get_running_loop().time())
        self.room = Room(PLACE, 1, self.ticks)
        self.ears: dict[str, Ear] = {}

    async def joined(self, *names: str) -> None:
        """Windows that have been welcomed, and have nothing more to hear."""
        for name in names:
            self.enter(name)
            self.room.admit(name, len(self.ears), NOWHERE)
        await self.told()

    def enter(self, name: str) -> None:
        self.ears[name] = Ear()
        self.room.enter(name, self.ears[name])

    def move(self, name: str, cursor: int | None) -> None:
        self.room.move(name, (json.dumps(cursor).encode(), b"null"))

    async def told(self) -> dict[str, list[Any]]:
        """The frames that each window gets in this turn of the loop."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taken = {name: ear.taken() for name, ear in self.ears.items()}
        return {name: frames for name, frames in taken.items() if frames}


@pytest.fixture
async def windows() -> Windows:
    return Windows()


def peer(session_id: str, number: int, cursor: Any) -> dict[str, Any]:
    return {"id": session_id, "number": number, "cursor": cursor, "drag": None}


async def test_one_change_is_a_peer_and_its_sender_hears_nothing(windows: Windows) -> None:
    """PR5 PR6"""
    await windows.joined("a", "b", "c")

    windows.move("a", 1)

    frame = {"type": "peer", **peer("a", 1, 1)}
    assert await windows.told() == {"b": [frame], "c": [frame]}


async def test_two_changes_are_peers_for_who_hears_of_both(windows: Windows) -> None:
    """PR5 PR6"""
    await windows.joined("a", "b", "c")

    windows.move("a", 1)
    windows.move("b", 2)

    assert await windows.told() == {
        "a": [{"type": "peer", **peer("b", 2, 2)}],
        "b": [{"type": "peer", **peer("a", 1, 1)}],
        "c": [{"type": "peers", "peers": [peer("a", 1, 1), peer("b", 2, 2)]}],
    }


async def test_each_of_many_hears_of_all_but_itself(windows: Windows) -> None:
    """PR5 PR6"""
    await windows.joined("a", "b", "c", "d")

    for name in ("c", "a", "b"):
        windows.move(name, 1)

    heard = {
        name: [[each["id"] for each in frame["peers"]] for frame in frames]
        for name, frames in (await windows.told()).items()
    }
    assert heard == {
        "a": [["c", "b"]],
        "b": [["c", "a"]],
        "c": [["a", "b"]],
        "d": [["c", "a", "b"]],
    }


async def test_who_goes_there_and_back_at_once_has_not_moved(windows: Windows) -> None:
    """PR6"""
    await windows.joined("a", "b")

    windows.move("a", 1)
    windows.move("a", None)

    assert await windows.told() == {}


async def test_who_joins_and_leaves_at_once_was_never_there(windows: Windows) -> None:
    """PR9"""
    await windows.joined("a")

    windows.enter("b")
    windows.room.admit("b", 2, NOWHERE)
    windows.move("b", 1)
    windows.room.leave("b")

    assert await windows.told() == {}


async def test_a_number_that_goes_to_another_is_taken_from_the_first_before(
    windows: Windows,
) -> None:
    """PR2 PR9"""
    await windows.joined("a", "b")

    windows.room.leave("b")
    windows.enter("c")
    windows.room.admit("c", 2, NOWHERE)

    heard = await windows.told()
    assert heard["a"] == [{"type": "leave", "id": "b"}, {"type": "peer", **peer("c", 2, None)}]


async def test_a_window_without_a_number_hears_nothing_and_is_not_seen(windows: Windows) -> None:
    """PR4 PR11"""
    await windows.joined("a")

    windows.enter("b")
    windows.move("b", 1)
    windows.room.pass_on(b'{"type":"heartbeat"}')

    assert await windows.told() == {"a": [{"type": "heartbeat"}]}


async def test_windows_see_those_at_other_gateways_come_move_and_go(windows: Windows) -> None:
    """PR6 PR9"""
    await windows.joined("a")

    windows.room.hear_of([Peer("x", 2), Peer("y", 3)], [])
    came = await windows.told()
    windows.room.hear_of([Peer("y", 3, (b"1", b"null"))], ["x"])
    moved = await windows.told()
    windows.room.hear_of([], ["y"])
    gone = await windows.told()

    assert came["a"] == [{"type": "peers", "peers": [peer("x", 2, None), peer("y", 3, None)]}]
    assert moved["a"] == [{"type": "leave", "id": "x"}, {"type": "peer", **peer("y", 3, 1)}]
    assert gone["a"] == [{"type": "leave", "id": "y"}]


async def test_those_elsewhere_of_whom_nothing_is_heard_again_are_gone(windows: Windows) -> None:
    """PR16"""
    await windows.joined("a")
    windows.room.hear_of([Peer("x", 2), Peer("y", 3)], [])
    await windows.told()

    known = windows.room.elsewhere()
    windows.room.hear_of([Peer("y", 3)], [])
    heard_again = await windows.told()
    windows.room.forget(known)

    assert heard_again == {}
    assert await windows.told() == {"a": [{"type": "leave", "id": "x"}]}


async def test_nobody_takes_a_window_of_this_gateway_for_one_elsewhere(windows: Windows) -> None:
    """PR5"""
    await windows.joined("a", "b")

    windows.room.hear_of([Peer("a", 7)], [])
    windows.room.hear_of([], ["a"])

    assert await windows.told() == {}


async def test_a_window_that_gets_another_number_is_welcomed_anew(windows: Windows) -> None:
    """PR16"""
    await windows.joined("a", "b")

    windows.room.admit("b", 5, NOWHERE)

    heard = await windows.told()
    assert heard["a"] == [{"type": "peer", **peer("b", 5, None)}]
    assert [(it["type"], it["number"]) for it in heard["b"]] == [("welcome", 5)]


async def test_a_window_that_is_busy_is_told_once_it_is_not_what_is_news_to_it(
    windows: Windows,
) -> None:
    """PR6 PR8"""
    await windows.joined("a", "b", "c", "d", "e")

    windows.room.pause("e")
    for cursor in range(1, 4):
        for name in ("a", "b", "c"):
            windows.move(name, cursor)
        await windows.told()
    # There and back again: nothing that the one that was busy does not know.
    windows.move("b", None)
    windows.room.leave("d")
    windows.enter("f")
    windows.room.admit("f", 4, NOWHERE)
    others = await windows.told()
    windows.room.resume("e")
    heard = await windows.told()
    windows.move("a", 9)

    assert {"a", "b", "c", "f"} == others.keys()
    assert heard == {
        "e": [
            {"type": "leave", "id": "d"},
            {"type": "peers", "peers": [peer("a", 1, 3), peer("c", 3, 3), peer("f", 4, None)]},
        ]
    }
    assert (await windows.told())["e"] == [{"type": "peer", **peer("a", 1, 9)}]


def test_where_peers_were_is_not_kept_for_windows_that_are_busy() -> None:
    """PR8"""
    audience = Audience()
    names = [f"w{number}" for number in range(32)]
    for name in names:
        audience.welcome(name)
    audience.take({})
    size_bytes = 16 * 1024

    tracemalloc.start()
    try:
        for number, name in enumerate(names):
            audience.touch("a")
            audience.take({"a": Peer("a", 1, (b"null", b"%d" % number * size_bytes))})
            audience.pause(name)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(audience) == len(names)
    assert held_bytes < 4 * size_bytes


async def test_who_comes_and_goes_while_a_window_is_busy_was_never_there_for_it(
    windows: Windows,
) -> None:
    """PR8 PR9"""
    await windows.joined("a", "b")

    windows.room.pause("b")
    for name in ("x", "y"):
        windows.room.hear_of([Peer(name, 3)], [])
        await windows.told()
        windows.room.hear_of([], [name])
        await windows.told()
    windows.room.pass_on(b'{"type":"heartbeat"}')
    windows.room.resume("b")

    assert (await windows.told())["b"] == [{"type": "heartbeat"}]


async def test_a_window_that_becomes_busy_as_it_is_told_misses_nothing_of_that(
    windows: Windows,
) -> None:
    """PR8"""
    await windows.joined("a", "b", "c")
    told: list[Any] = []

    def busy(message: bytes) -> None:
        windows.room.pause("c")
        told.append(json.loads(text_of(message)))

    windows.ears["c"].show = busy  # type: ignore[method-assign]
    windows.room.leave("a")
    windows.move("b", 1)
    await windows.told()
    windows.room.resume("c")
    await windows.told()

    assert told == [{"type": "leave", "id": "a"}, {"type": "peer", **peer("b", 2, 1)}]


async def test_a_window_that_is_busy_is_welcomed_once_it_is_not(windows: Windows) -> None:
    """PR4 PR8"""
    await windows.joined("a", "b")

    windows.room.pause("b")
    windows.room.welcome("b")
    windows.move("a", 1)
    meanwhile = await windows.told()
    windows.room.resume("b")
    [welcome] = (await windows.told())["b"]

    assert meanwhile == {}
    assert welcome["peers"] == [peer("a", 1, 1)]


async def test_a_revision_that_somebody_has_read_is_told_if_it_is_news(windows: Windows) -> None:
    """PR10"""
    await windows.joined("a")
    windows.room.revise(7)

    windows.room.catch_up(7)
    same = await windows.told()
    windows.room.catch_up(8)

    assert same == {}
    assert await windows.told() == {"a": [{"type": "invalidate", "revision": 8}]}


async def test_where_much_is_told_changes_are_gathered(windows: Windows) -> None:
    """PR7"""
    await windows.joined("a", "b")
    windows.ticks.count(int(MUCH_PER_SECOND), asyncio.get_running_loop().time())

    windows.move("a", 1)
    at_once = await windows.told()
    windows.move("a", 2)
    windows.move("a", 3)
    soon = await windows.told()
    async with asyncio.timeout(5):
        while not windows.ears["b"].frames:
            await asyncio.sleep(0)

    assert at_once == {"b": [{"type": "peer", **peer("a", 1, 1)}]}
    assert soon == {}
    assert windows.ears["b"].frames == [{"type": "peer", **peer("a", 1, 3)}]


@pytest.mark.parametrize(
    ("per_second", "seconds"), [(2_000, 0), (4_000, 0.004), (24_000, 0.008), (1_000_000, 0.016)]
)
def test_the_tick_grows_with_what_there_is_to_tell(per_second: int, seconds: float) -> None:
    """PR7"""
    ticks = Ticks(now=0.0)
    for step in range(2_000):
        ticks.count(per_second // 1_000, now=step / 1_000)

    assert ticks.seconds(2.0) == pytest.approx(seconds, rel=0.05)
    assert ticks.seconds(4.0) == 0
