"""What a gateway is told of rooms, tick by tick."""

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from servicekit.errors import Unavailable
from services.presence.domain.rooms import Announcement, Place
from services.presence.domain.versions import MAX_OPERATIONS_BYTES, Version
from services.presence.gateways import Closing, Gateway, Telling, Update
from services.presence.service import PresenceService

PLACE = Place("us_a", "c")


@pytest.fixture
def service() -> PresenceService:
    return PresenceService(tick_seconds=3600)


@pytest.fixture
def gateway(service: PresenceService) -> Iterator[Gateway]:
    with service.connected() as gateway:
        yield gateway


@pytest.fixture
def other(service: PresenceService) -> Iterator[Gateway]:
    with service.connected() as gateway:
        yield gateway


def joined(gateway: Gateway, *session_ids: str) -> None:
    """Sessions that have their numbers, at a gateway that has nothing more to hear."""
    for session_id in session_ids:
        gateway.join(session_id, PLACE, revision=1)
    list(gateway.take())


def told(gateway: Gateway) -> Telling:
    """All that there is to tell now."""
    tellings = list(gateway.take())
    return Telling(
        closings=tuple(closing for telling in tellings for closing in telling.closings),
        updates=tuple(update for telling in tellings for update in telling.updates),
        heartbeat=any(telling.heartbeat for telling in tellings),
    )


def update(gateway: Gateway) -> Update:
    """What there is to tell of the one room of which there is something to tell."""
    [update] = told(gateway).updates
    return update


def frames(gateway: Gateway) -> list[Any]:
    return [json.loads(frame) for frame in update(gateway).frames]


async def announce(service: PresenceService, *versions: Version) -> None:
    await service.announce([Announcement(PLACE, version) for version in versions])


def test_a_session_gets_the_lowest_free_number(gateway: Gateway) -> None:
    """PR2"""
    joined(gateway, "a", "b", "c")
    gateway.leave("b")
    list(gateway.take())

    gateway.join("d", PLACE, revision=1)

    assert [(it.session_id, it.number) for it in update(gateway).news.admitted] == [("d", 2)]


def test_a_gateway_hears_of_peers_at_others_and_not_of_its_own(
    gateway: Gateway, other: Gateway
) -> None:
    """PR5 PR6"""
    joined(gateway, "a", "b")

    other.join("x", PLACE, revision=1)
    other.move("x", b"1", b"null")
    gateway.move("a", b"2", b"null")

    news = update(gateway).news
    assert [(it.session_id, it.number, it.cursor) for it in news.changed] == [("x", 3, b"1")]
    assert news.shared
    other.leave("x")
    news = update(gateway).news
    assert (news.left, news.changed, news.shared) == (("x",), (), False)


def test_a_gateway_that_comes_hears_of_everybody(gateway: Gateway, other: Gateway) -> None:
    """PR4"""
    joined(gateway, "a", "b")
    gateway.move("b", b"1", b"null")

    other.join("x", PLACE, revision=7)

    news = update(other).news
    assert news.anew
    assert [(it.session_id, it.cursor) for it in news.changed] == [("a", b"null"), ("b", b"1")]
    assert [(it.session_id, it.number) for it in news.admitted] == [("x", 3)]


def test_a_gateway_that_does_not_read_is_told_the_newest_state_only(
    service: PresenceService, gateway: Gateway, other: Gateway
) -> None:
    """PR7 PR8"""
    joined(gateway, "a")
    for number in range(1000):
        other.join(f"b{number}", PLACE, revision=number)
        other.move(f"b{number}", b"%d" % number, b"null")
        if number < 999:
            other.leave(f"b{number}")

    heard = update(gateway)

    assert [(it.session_id, it.cursor) for it in heard.news.changed] == [("b999", b"999")]
    assert heard.news.left == ()
    assert [json.loads(frame) for frame in heard.frames] == [
        {"type": "invalidate", "revision": 999}
    ]


def test_who_joins_and_leaves_within_a_tick_was_never_there(
    gateway: Gateway, other: Gateway
) -> None:
    """PR9"""
    joined(gateway, "a")

    other.join("b", PLACE, revision=1)
    other.leave("b")

    news = update(gateway).news
    assert (news.changed, news.left, news.shared) == ((), (), False)


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

    closing = Closing("late", 4429, "At most 64 windows can have a canvas open.")
    assert told(gateway).closings == (closing,)
    gateway.leave("late")
    assert told(gateway) == Telling()


def test_a_session_that_comes_over_another_stream_stays_who_it_is(
    gateway: Gateway, other: Gateway, service: PresenceService
) -> None:
    """PR16"""
    with service.connected() as lost:
        joined(lost, "a", "b")
        joined(other, "x")

        gateway.join("b", PLACE, revision=1, number=2, term=2)

        admitted = [(it.session_id, it.number) for it in update(gateway).news.admitted]
        assert admitted == [("b", 2)]
    news = update(other).news
    assert (news.left, [it.session_id for it in news.changed]) == (("a",), ["b"])


def test_a_stream_that_is_late_takes_no_session_from_a_newer_one(
    gateway: Gateway, service: PresenceService
) -> None:
    """PR16"""
    gateway.join("a", PLACE, revision=1, term=2)
    list(gateway.take())

    with service.connected() as late:
        late.join("a", PLACE, revision=1, number=1, term=1)
        assert not update(late).news.admitted

    news = told(gateway)
    assert news == Telling() or not news.updates[0].news.left
    gateway.join("b", PLACE, revision=1)
    assert [it.number for it in update(gateway).news.admitted] == [2]


def test_a_number_that_went_to_another_is_not_given_back(gateway: Gateway) -> None:
    """PR2 PR16"""
    joined(gateway, "a")

    gateway.join("b", PLACE, revision=1, number=1)
    gateway.join("c", PLACE, revision=1, number=5)
    gateway.join("d", PLACE, revision=1, number=65)

    assert [it.number for it in update(gateway).news.admitted] == [2, 5, 3]


async def test_the_first_change_goes_at_once_and_the_next_waits_for_the_tick(
    gateway: Gateway,
) -> None:
    """PR7"""
    tellings = gateway.tellings()
    gateway.join("a", PLACE, revision=1)
    async with asyncio.timeout(5):
        first = await anext(tellings)
    assert first.updates

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


async def test_what_waits_is_told_as_operations_from_where_the_window_was(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10"""
    joined(gateway, "a")
    for revision, operation in ((2, b'["two"]'), (3, b'["three"]')):
        await announce(service, Version(revision, f"h{revision}", revision - 1, operation, "m"))
    together = frames(gateway)
    await announce(service, Version(4, "h4", 3, b'["four"]', "m4"))
    alone = frames(gateway)

    common = {"type": "invalidate"}
    assert together == [
        common
        | {"revision": 3, "contentHash": "h3", "baseRevision": 1, "operations": ["two", "three"]}
    ]
    assert alone == [
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
async def test_operations_that_do_not_lead_all_the_way_are_not_told(
    service: PresenceService, gateway: Gateway, versions: tuple[Version, ...]
) -> None:
    """PR10"""
    joined(gateway, "a")

    await announce(service, *versions)

    assert frames(gateway) == [{"type": "invalidate", "revision": 4, "contentHash": "h"}]


async def test_a_lease_is_told_though_the_revision_is_not_new(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10"""
    joined(gateway, "a")

    await service.announce([Announcement(PLACE, Version(0), leases_changed=True)])
    first = frames(gateway)
    await announce(service, Version(0))

    assert first == [{"type": "invalidate", "revision": 1}]
    assert told(gateway) == Telling()


@pytest.mark.parametrize("lease_first", [True, False])
async def test_a_lease_is_told_beside_operations_that_wait(
    service: PresenceService, gateway: Gateway, lease_first: bool
) -> None:
    """PR10"""
    joined(gateway, "a")
    lease = Announcement(PLACE, Version(0), leases_changed=True)
    commit = Announcement(PLACE, Version(2, "h2", 1, b'["two"]', "m2"))

    await service.announce([lease, commit] if lease_first else [commit, lease])

    [operations, leases] = frames(gateway)
    assert (operations["revision"], operations["operations"]) == (2, ["two"])
    assert leases == {"type": "invalidate", "revision": 2}


async def test_a_lease_is_not_told_beside_a_version_that_has_to_be_asked_for(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10"""
    joined(gateway, "a")

    await service.announce([Announcement(PLACE, Version(2, "h2"), leases_changed=True)])

    assert frames(gateway) == [{"type": "invalidate", "revision": 2, "contentHash": "h2"}]


async def test_a_room_of_a_deleted_canvas_is_closed_and_is_not_joined_again(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR18"""
    joined(gateway, "a", "b")
    await announce(service, Version(7, "h"))

    await service.announce([Announcement(PLACE, Version(0), deleted=True)])
    gateway.join("c", PLACE, revision=1)
    closed = {it.session_id: it.code for it in told(gateway).closings}
    gateway.leave("a")
    gateway.leave("b")
    list(gateway.take())
    await announce(service, Version(2, "h2"))

    assert closed == {"a": 4404, "b": 4404}
    assert frames(gateway) == [{"type": "invalidate", "revision": 2, "contentHash": "h2"}]


def test_what_has_to_be_told_of_many_rooms_goes_in_messages_that_stay_small(
    gateway: Gateway, other: Gateway
) -> None:
    """PR8"""
    big = b'"%s"' % (b"x" * 16_000)
    for room in range(40):
        gateway.join(f"a{room}", Place("us_a", f"c{room}"), revision=1)
        for number in range(10):
            other.join(f"b{room}-{number}", Place("us_a", f"c{room}"), revision=1)
            other.move(f"b{room}-{number}", big, b"null")

    tellings = list(gateway.take())

    sizes = [sum(it.size_bytes() for it in telling.updates) for telling in tellings]
    assert sum(len(telling.updates) for telling in tellings) == 40
    assert len(tellings) > 4
    assert max(sizes) < 2 * 1024 * 1024


async def test_who_comes_to_a_canvas_made_anew_ends_the_room_of_the_one_before(
    service: PresenceService, gateway: Gateway, other: Gateway
) -> None:
    """PR18"""
    gateway.join("a", PLACE, revision=900, incarnation=1)
    list(gateway.take())

    other.join("b", PLACE, revision=1, incarnation=2)
    came = update(other)
    await announce(service, Version(2, "h2"))

    assert [(it.session_id, it.code) for it in told(gateway).closings] == [("a", 4404)]
    assert ([it.number for it in came.news.admitted], came.revision) == ([1], 1)
    assert frames(other) == [{"type": "invalidate", "revision": 2, "contentHash": "h2"}]


async def test_what_is_told_of_a_canvas_is_for_its_own_room(
    service: PresenceService, gateway: Gateway
) -> None:
    """PR10 PR18"""
    gateway.join("a", PLACE, revision=1, incarnation=2)
    list(gateway.take())

    await service.announce([Announcement(PLACE, Version(900, "old"), incarnation=1)])
    await service.announce([Announcement(PLACE, Version(0), deleted=True, incarnation=1)])
    before = told(gateway)
    await service.announce([Announcement(PLACE, Version(2, "h2"), incarnation=2)])
    own = frames(gateway)
    await service.announce([Announcement(PLACE, Version(0), deleted=True, incarnation=2)])

    assert before == Telling()
    assert own == [{"type": "invalidate", "revision": 2, "contentHash": "h2"}]
    assert [(it.session_id, it.code) for it in told(gateway).closings] == [("a", 4404)]


def test_who_comes_late_to_a_canvas_that_was_made_anew_is_in_no_room(
    gateway: Gateway, other: Gateway
) -> None:
    """PR18"""
    gateway.join("a", PLACE, revision=1, incarnation=2)
    list(gateway.take())

    other.join("late", PLACE, revision=900, incarnation=1)
    other.move("late", b"1", b"null")
    telling = told(other)
    other.leave("late")

    assert [(it.session_id, it.code) for it in telling.closings] == [("late", 4404)]
    assert (telling.updates, told(gateway), told(other)) == ((), Telling(), Telling())
