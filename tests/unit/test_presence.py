"""What a gateway is told, tick by tick."""

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from servicekit.errors import Unavailable
from services.presence.domain.frames import Delivery
from services.presence.domain.versions import MAX_OPERATIONS_BYTES, Version
from services.presence.service import Closing, Gateway, Place, PresenceService

PLACE = Place("us_a", "c")


@pytest.fixture
def service() -> PresenceService:
    return PresenceService(tick_seconds=3600)


@pytest.fixture
def gateway(service: PresenceService) -> Iterator[Gateway]:
    with service.connected() as gateway:
        yield gateway


def joined(gateway: Gateway, *session_ids: str) -> None:
    """Sessions that have been welcomed."""
    for session_id in session_ids:
        gateway.join(session_id, PLACE, revision=1)
    list(gateway.take())


def told(gateway: Gateway) -> dict[str, list[Any]]:
    """The frames that each session gets now."""
    frames: dict[str, list[Any]] = {}
    for telling in gateway.take():
        assert isinstance(telling, Delivery)
        cuts = {cut.session_id: cut for cut in telling.omissions}
        for session_id in telling.session_ids:
            frame = telling.frame
            if session_id in cuts:
                frame = frame[: cuts[session_id].start] + frame[cuts[session_id].end :]
            frames.setdefault(session_id, []).append(json.loads(frame))
    return frames


def peer(session_id: str, number: int, cursor: Any) -> dict[str, Any]:
    return {"id": session_id, "number": number, "cursor": cursor, "drag": None}


def test_one_change_is_a_peer_and_its_sender_hears_nothing(gateway: Gateway) -> None:
    """PR5 PR6"""
    joined(gateway, "a", "b", "c")

    gateway.move("a", b"1", b"null")

    frame = {"type": "peer", **peer("a", 1, 1)}
    assert told(gateway) == {"b": [frame], "c": [frame]}


def test_two_changes_are_peers_for_who_hears_of_both(gateway: Gateway) -> None:
    """PR5 PR6"""
    joined(gateway, "a", "b", "c")

    gateway.move("a", b"1", b"null")
    gateway.move("b", b"2", b"null")

    assert told(gateway) == {
        "a": [{"type": "peer", **peer("b", 2, 2)}],
        "b": [{"type": "peer", **peer("a", 1, 1)}],
        "c": [{"type": "peers", "peers": [peer("a", 1, 1), peer("b", 2, 2)]}],
    }


def test_each_of_many_hears_of_all_but_itself(gateway: Gateway) -> None:
    """PR5 PR6"""
    joined(gateway, "a", "b", "c", "d")

    for session_id in ("c", "a", "b"):
        gateway.move(session_id, b"1", b"null")

    heard = {
        session_id: [[each["id"] for each in frame["peers"]] for frame in frames]
        for session_id, frames in told(gateway).items()
    }
    assert heard == {
        "a": [["c", "b"]],
        "b": [["c", "a"]],
        "c": [["a", "b"]],
        "d": [["c", "a", "b"]],
    }


def test_who_goes_there_and_back_within_a_tick_has_not_moved(gateway: Gateway) -> None:
    """PR6"""
    joined(gateway, "a", "b")

    gateway.move("a", b"1", b"null")
    gateway.move("a", b"null", b"null")

    assert told(gateway) == {}


def test_who_joins_and_leaves_within_a_tick_was_never_there(gateway: Gateway) -> None:
    """PR9"""
    joined(gateway, "a")

    gateway.join("b", PLACE, revision=1)
    gateway.move("b", b"1", b"null")
    gateway.leave("b")

    assert told(gateway) == {}


def test_a_gateway_that_does_not_read_is_told_the_newest_state_only(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR7 PR8"""
    joined(gateway, "a")
    with service.connected() as other:
        for number in range(1000):
            other.join(f"b{number}", PLACE, revision=number)
            other.move(f"b{number}", b"%d" % number, b"null")
            if number < 999:
                other.leave(f"b{number}")
            service.announce(PLACE, Version(number), leases_changed=False)

        heard = told(gateway)

    assert heard == {
        "a": [{"type": "peer", **peer("b999", 2, 999)}, {"type": "invalidate", "revision": 999}]
    }


def test_a_number_that_goes_to_another_is_taken_from_the_first_before(gateway: Gateway) -> None:
    """PR2 PR9"""
    joined(gateway, "a", "b")

    gateway.leave("b")
    gateway.join("c", PLACE, revision=1)

    heard = told(gateway)
    assert heard["a"] == [{"type": "leave", "id": "b"}, {"type": "peer", **peer("c", 2, None)}]


def test_an_id_that_left_and_joins_again_is_told_again(gateway: Gateway) -> None:
    """PR9"""
    joined(gateway, "a", "b")
    gateway.leave("b")
    list(gateway.take())

    gateway.join("b", PLACE, revision=1)

    assert told(gateway)["a"] == [{"type": "peer", **peer("b", 2, None)}]


def test_a_gateway_that_is_gone_is_forgotten(service: PresenceService, gateway: Gateway) -> None:
    """PR9"""
    joined(gateway, "a")
    with service.connected() as other:
        joined(other, "b")
    gone = weakref.ref(other)

    del other
    gc.collect()

    assert gone() is None


def test_a_refused_session_is_known_until_it_leaves(gateway: Gateway) -> None:
    """PR3 PR15"""
    joined(gateway, *(f"s{number}" for number in range(64)))

    gateway.join("late", PLACE, revision=1)
    gateway.move("late", b"1", b"null")
    gateway.resync("late")

    closing = Closing("late", 4429, "At most 64 windows can have a canvas open.")
    assert list(gateway.take()) == [closing]
    gateway.leave("late")
    assert told(gateway) == {}


def test_nobody_hears_a_heartbeat_before_the_welcome(gateway: Gateway) -> None:
    """PR4 PR11"""
    joined(gateway, "a")

    gateway.beat()
    gateway.join("b", PLACE, revision=1)

    heard = told(gateway)
    assert [frame["type"] for frame in heard["a"]] == ["peer", "heartbeat"]
    assert [frame["type"] for frame in heard["b"]] == ["welcome", "heartbeat"]


async def test_the_first_change_goes_at_once_and_the_next_waits_for_the_tick(
    gateway: Gateway,
) -> None:
    """PR7"""
    tellings = gateway.tellings()
    gateway.join("a", PLACE, revision=1)
    async with asyncio.timeout(5):
        first = await anext(tellings)
    assert isinstance(first, Delivery)

    gateway.join("b", PLACE, revision=1)
    waiting = asyncio.ensure_future(anext(tellings))
    for _ in range(10):
        await asyncio.sleep(0)

    assert not waiting.done()
    waiting.cancel()


async def test_an_instance_that_goes_away_takes_no_more_gateways(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR17"""
    draining = asyncio.Event()
    draining.set()

    await service.end_when(draining)

    with pytest.raises(Unavailable):
        await anext(gateway.tellings())
    with pytest.raises(Unavailable), service.connected():
        pass


def test_what_waits_is_told_as_operations_from_where_the_window_was(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10"""
    joined(gateway, "a")
    for revision, operation in ((2, b'["two"]'), (3, b'["three"]')):
        version = Version(revision, f"h{revision}", revision - 1, operation, "m")
        service.announce(PLACE, version, leases_changed=False)
    together = told(gateway)
    service.announce(PLACE, Version(4, "h4", 3, b'["four"]', "m4"), leases_changed=False)
    alone = told(gateway)

    common = {"type": "invalidate"}
    assert together["a"] == [
        common
        | {"revision": 3, "contentHash": "h3", "baseRevision": 1, "operations": ["two", "three"]}
    ]
    assert alone["a"] == [
        common
        | {
            "revision": 4,
            "contentHash": "h4",
            "mutationId": "m4",
            "baseRevision": 3,
            "operations": ["four"],
        }
    ]


@pytest.mark.parametrize(
    "versions",
    [
        (Version(2, "h2", 1, b'["two"]'), Version(4, "h", 3, b'["four"]')),
        (Version(2, "h2"), Version(4, "h", 2, b'["four"]')),
        (Version(2, "h2", 1, b'["two"]'), Version(4, "h")),
        (
            Version(2, "h2", 1, b'["%s"]' % (b"x" * (MAX_OPERATIONS_BYTES - 100))),
            Version(4, "h", 2, b'["%s"]' % (b"x" * 100)),
        ),
    ],
    ids=["a gap", "before unknown", "after unknown", "too long"],
)
def test_operations_that_do_not_lead_all_the_way_are_not_told(
    service: PresenceService, gateway: Gateway, versions: tuple[Version, ...]
) -> None:
    """PR10"""
    joined(gateway, "a")

    for version in versions:
        service.announce(PLACE, version, leases_changed=False)

    assert told(gateway)["a"] == [{"type": "invalidate", "revision": 4, "contentHash": "h"}]


def test_a_lease_is_told_though_the_revision_is_not_new(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10"""
    joined(gateway, "a")

    service.announce(PLACE, Version(0), leases_changed=True)
    first = told(gateway)
    service.announce(PLACE, Version(0), leases_changed=False)

    assert first["a"] == [{"type": "invalidate", "revision": 1}]
    assert told(gateway) == {}


@pytest.mark.parametrize("lease_first", [True, False])
def test_a_lease_is_told_beside_operations_that_wait(
    service: PresenceService, gateway: Gateway, lease_first: bool
) -> None:
    """PR10"""
    joined(gateway, "a")
    lease, commit = (Version(0), True), (Version(2, "h2", 1, b'["two"]', "m2"), False)

    for version, leases_changed in (lease, commit) if lease_first else (commit, lease):
        service.announce(PLACE, version, leases_changed=leases_changed)

    [operations, leases] = told(gateway)["a"]
    assert (operations["revision"], operations["operations"]) == (2, ["two"])
    assert leases == {"type": "invalidate", "revision": 2}


def test_a_lease_is_not_told_beside_a_version_that_has_to_be_asked_for(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10"""
    joined(gateway, "a")

    service.announce(PLACE, Version(2, "h2"), leases_changed=True)

    assert told(gateway)["a"] == [{"type": "invalidate", "revision": 2, "contentHash": "h2"}]


def test_a_room_of_a_deleted_canvas_is_closed_and_is_not_joined_again(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR18"""
    joined(gateway, "a", "b")
    service.announce(PLACE, Version(7, "h"), leases_changed=False)

    service.announce_deleted(PLACE)
    gateway.join("c", PLACE, revision=1)
    closed = {it.session_id: it.code for it in gateway.take() if isinstance(it, Closing)}
    gateway.leave("a")
    gateway.leave("b")
    list(gateway.take())
    service.announce(PLACE, Version(2, "h2"), leases_changed=False)

    assert closed == {"a": 4404, "b": 4404}
    assert told(gateway) == {"c": [{"type": "invalidate", "revision": 2, "contentHash": "h2"}]}
