"""Several instances of presence on one real Valkey: they are as one for the windows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from gesso.presence.v1 import presence_pb2 as pb
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub

from gateway.mailbox import Closed
from gateway.presence import PresenceLink
from servicekit.background import background
from servicekit.identity import Behalf
from servicekit.valkey import ValkeySettings, connected
from services.presence import exchange, relay
from services.presence.domain.rooms import Place, Rooms
from services.presence.gateways import Gateway
from services.presence.leases import Lease, Leases
from services.presence.service import PresenceService
from tests.integration.test_presence import QUIET_SECONDS, House, Window, announce
from tests.support.services import new_account, presence_service, presence_settings
from tests.support.valkey import ValkeyServer, valkey_server


@asynccontextmanager
async def instance(url: str, **settings: object) -> AsyncIterator[House]:
    """An instance, and a house of gateways and windows at it."""
    wanted = presence_settings(
        heartbeat_seconds=QUIET_SECONDS, valkey=ValkeySettings(redis_url=url), **settings
    )
    async with presence_service(wanted) as port, AsyncExitStack() as stack:
        yield House(port, stack)


class Town:
    """Instances that know the same Valkey, each with a gateway; all windows are one account's."""

    def __init__(self, houses: list[House], links: list[PresenceLink]) -> None:
        self.houses = houses
        self.links = links
        self.account_id = houses[0].account_id

    async def window(self, at: int, canvas_id: str = "c", incarnation: int = 0) -> Window:
        return await self.houses[at].window(
            self.links[at], canvas_id, account_id=self.account_id, incarnation=incarnation
        )


@asynccontextmanager
async def town(url: str) -> AsyncIterator[Town]:
    async with instance(url) as first, instance(url) as second:
        yield Town([first, second], [await first.gateway(), await second.gateway()])


@pytest.fixture
async def two(shared_valkey: ValkeyServer) -> AsyncIterator[Town]:
    async with town(shared_valkey.url) as found:
        yield found


async def peers_of(window: Window, *, count: int) -> dict[str, dict[str, Any]]:
    """The peers of a window that has just come, once there are so many."""
    welcome = await window.welcomed()
    peers = {peer["id"]: peer for peer in welcome["peers"]}
    while len(peers) < count:
        await follow(window, peers)
    return peers


async def follow(window: Window, peers: dict[str, dict[str, Any]]) -> None:
    """Takes the next frame of a window."""
    frame = await window.event()
    match frame["type"]:
        case "leave":
            del peers[frame["id"]]
        case "peer":
            peers[frame["id"]] = frame
        case "peers":
            peers |= {peer["id"]: peer for peer in frame["peers"]}


async def test_windows_of_two_instances_see_each_other_come_move_and_go(two: Town) -> None:
    """PR2 PR6 PR9 PR22"""
    here = await two.window(0)
    assert (await here.welcomed())["number"] == 1
    async with AsyncExitStack() as stack:
        house = House(two.houses[1].port, stack)
        there = await house.window(two.links[1], account_id=two.account_id)
        seen = await peers_of(there, count=1)
        came = await here.event()
        here.move({"x": 1, "y": 2})
        while (frame := await there.event())["cursor"] is None:
            pass
        there.move({"x": 3, "y": 4})
        moved = await here.event()
    left = await here.event()

    assert {name: peer["number"] for name, peer in seen.items()} == {here.self_id: 1}
    assert (came["id"], came["number"]) == (there.self_id, 2)
    assert (frame["id"], frame["cursor"]) == (here.self_id, {"x": 1, "y": 2})
    assert (moved["id"], moved["cursor"]) == (there.self_id, {"x": 3, "y": 4})
    assert left == {"type": "leave", "id": there.self_id}


async def test_a_room_holds_64_windows_at_all_instances_together(two: Town) -> None:
    """PR2 PR3 PR22"""
    windows = [await two.window(number % 2) for number in range(64)]
    numbers = [(await window.welcomed())["number"] for window in windows]

    late = await two.window(1)

    assert sorted(numbers) == list(range(1, 65))
    assert await late.event() == Closed(4429, "At most 64 windows can have a canvas open.")


async def test_what_one_instance_hears_of_commits_all_windows_hear(two: Town) -> None:
    """PR10 PR22"""
    windows = [await two.window(at) for at in (0, 1)]
    for window in windows:
        await window.welcomed()
    client = await two.houses[0].client()

    await announce(client, two.account_id, [("c", 7)])
    heard = []
    for window in windows:
        while (frame := await window.event())["type"] != "invalidate":
            pass
        heard.append(frame["revision"])
    third = await two.window(1)

    assert heard == [7, 7]
    assert (await third.welcomed())["revision"] == 7


async def test_a_deleted_canvas_closes_its_windows_at_all_instances(two: Town) -> None:
    """PR18 PR22"""
    there = await two.window(1)
    await there.welcomed()
    client = await two.houses[0].client()
    gone = pb.Invalidation(account_id=two.account_id, canvas_id="c", deleted=True)

    request = pb.AnnounceRequest(invalidations=[gone])
    await client.call(PresenceServiceStub(client.channel).Announce, request, Behalf())

    assert await there.event() == Closed(4404, "The canvas was deleted.")
    # A new canvas of that id has a room of its own.
    assert (await (await two.window(1)).welcomed())["peers"] == []


@pytest.mark.parametrize("late", [0, 1])
async def test_a_canvas_made_anew_shares_nothing_with_the_one_before_at_any_instance(
    two: Town, late: int
) -> None:
    """PR18 PR22"""
    before = [await two.window(at, incarnation=1) for at in (0, 1)]
    for window in before:
        await window.welcomed()

    after = await two.window(0, incarnation=2)
    welcome = await after.welcomed()
    ends = [await _closed(window) for window in before]
    again = await two.window(late, incarnation=1)
    other = await two.window(1, incarnation=2)
    seen = await peers_of(other, count=1)

    assert (welcome["number"], welcome["peers"]) == (1, [])
    assert ends == [Closed(4404, "The canvas was deleted.")] * 2
    # Who was let in before the canvas was deleted, and is late, is in nobody's room either.
    assert await _closed(again) == Closed(4404, "The canvas was deleted.")
    assert {name: peer["number"] for name, peer in seen.items()} == {after.self_id: 1}
    assert (await after.event())["id"] == other.self_id


async def test_two_canvases_of_one_id_lease_their_numbers_apart(
    leases: list[Leases], place: Place
) -> None:
    """PR18 PR22"""
    a, b = leases

    taken = await a.take([Lease(place, 1, "s1", 0), Lease(place, 2, "s2", 0)])
    await b.release([Lease(place, 1, "s1", 1)])
    lost = await b.renew([Lease(place, 2, "s1", 1)])

    assert taken == [1, 1]
    assert lost == ["s1"]


async def test_a_commit_of_a_canvas_made_anew_ends_the_windows_of_the_one_before(
    two: Town,
) -> None:
    """PR18 PR22"""
    there = await two.window(1, incarnation=1)
    await there.welcomed()
    client = await two.houses[0].client()
    news = pb.Invalidation(account_id=two.account_id, canvas_id="c", revision=2, incarnation=2)

    request = pb.AnnounceRequest(invalidations=[news])
    await client.call(PresenceServiceStub(client.channel).Announce, request, Behalf())

    assert await there.event() == Closed(4404, "The canvas was deleted.")


async def test_rooms_of_other_accounts_and_canvases_hear_nothing(two: Town) -> None:
    """PR1 PR22"""
    here = await two.window(0)
    await here.welcomed()
    stranger = new_account().account_id or ""

    other = await two.houses[1].window(two.links[1], account_id=stranger)
    elsewhere = await two.window(1, "d")

    assert [(await it.welcomed())["peers"] for it in (other, elsewhere)] == [[], []]
    await announce(await two.houses[1].client(), two.account_id, [("c", 2)])
    assert (await here.event())["revision"] == 2


async def test_sessions_go_to_another_instance_as_they_are(shared_valkey: ValkeyServer) -> None:
    """PR16 PR17 PR22"""
    url = shared_valkey.url
    async with instance(url) as stays, AsyncExitStack() as stack:
        watcher = await stays.window(await stays.gateway())
        await watcher.welcomed()
        async with instance(url) as goes:
            house = House(goes.port, stack)
            link = await house.gateway()
            moved = [await house.window(link, account_id=stays.account_id) for _ in range(2)]
            numbers = {}
            for window in moved:
                number = (await window.welcomed())["number"]
                numbers[window.self_id] = number
            seen: dict[str, dict[str, Any]] = {}
            while len(seen) < 2:
                await follow(watcher, seen)
        moved[0].move({"x": 5, "y": 5})
        async with instance(url, listen=f"127.0.0.1:{goes.port}"):
            while (frame := await watcher.event())["cursor"] is None:
                assert frame["type"] == "peer", "nobody was gone"
                assert frame["number"] == numbers[frame["id"]]

    assert (frame["id"], frame["number"]) == (moved[0].self_id, numbers[moved[0].self_id])


async def test_without_valkey_windows_of_one_instance_go_on_and_all_meet_again_after() -> None:
    """PR22 PR23"""
    async with valkey_server() as server, town(server.url) as two:
        here, there = await two.window(0), await two.window(1)
        seen_here = await peers_of(here, count=1)
        seen_there = await peers_of(there, count=1)
        server.kill()

        newcomer = await two.window(0)
        seen = await peers_of(newcomer, count=2)
        await follow(here, seen_here)
        here.move({"x": 1, "y": 1})
        while seen[here.self_id]["cursor"] is None:
            await follow(newcomer, seen)

        await server.start()
        while len(seen_there) < 2 or seen_there[here.self_id]["cursor"] is None:
            await follow(there, seen_there)

    assert seen_there.keys() == {here.self_id, newcomer.self_id}
    assert {peer["number"] for peer in seen.values()} == {1, 2}


async def test_who_has_the_number_of_another_after_valkey_came_back_is_closed() -> None:
    """PR23"""
    async with valkey_server() as server, town(server.url) as two:
        server.kill()
        # Neither instance knows of the other: both give the first number.
        windows = [await two.window(at) for at in (0, 1)]
        for window in windows:
            assert (await window.welcomed())["number"] == 1
        await server.start()

        ends = [asyncio.create_task(_closed(window)) for window in windows]
        done, pending = await asyncio.wait(ends, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    [closed] = [task.result() for task in done]
    assert closed == Closed(4409, "The number of this window is another's now; connect again.")


async def _closed(window: Window) -> Closed:
    while not isinstance(event := await window.event(), Closed):
        pass
    return event


async def test_who_is_silent_is_gone(
    shared_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PR22"""
    monkeypatch.setattr(relay, "RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 0.3)
    async with instance(shared_valkey.url) as house, connected(shared_valkey.url) as client:
        window = await house.window(await house.gateway())
        await window.welcomed()
        # An instance that says whom it has, and then nothing more, as one that was killed.
        news = pb.RoomNews(
            instance_id="pi_gone",
            anew=True,
            peers=[pb.Peer(session_id="ghost", number=2, cursor=b"null", drag=b"null")],
        )
        channel = f"gesso:presence:room:{house.account_id}/c"
        while not await client.publish(channel, news.SerializeToString()):
            await asyncio.sleep(0.01)

        came, left = await window.event(), await window.event()

    assert (came["type"], came["id"]) == ("peer", "ghost")
    assert left == {"type": "leave", "id": "ghost"}


@pytest.fixture
async def leases(shared_valkey: ValkeyServer) -> AsyncIterator[list[Leases]]:
    async with connected(shared_valkey.url) as client:
        yield [Leases(client, name) for name in ("pi_a", "pi_b")]


@pytest.fixture
def place() -> Place:
    return Place(new_account().account_id or "", "c")


async def test_a_number_is_one_sessions_while_it_is_leased(
    leases: list[Leases], place: Place
) -> None:
    """PR22"""
    a, b = leases

    first = await a.take([Lease(place, 1, "s1", 0), Lease(place, 1, "s2", 0)])
    again = await b.take(
        [Lease(place, 1, "s1", 0), Lease(place, 1, "s3", 2), Lease(place, 1, "s4", 9)]
    )

    assert first == [1, 2]
    # A session that comes over another instance keeps its number; one that is taken is not given.
    assert again == [1, 3, 9]
    # The instance where it was before cannot end the lease any more.
    await a.release([Lease(place, 1, "s1", 1), Lease(place, 1, "s2", 2)])
    assert await b.take([Lease(place, 1, "s5", 1), Lease(place, 1, "s6", 0)]) == [2, 4]


async def test_a_lease_that_is_over_is_anybodys_and_one_that_is_renewed_is_not(
    shared_valkey: ValkeyServer, place: Place
) -> None:
    """PR22 PR23"""
    async with connected(shared_valkey.url) as client:
        gone = Leases(client, "pi_gone", lease_seconds=0)
        here = Leases(client, "pi_here")
        await gone.take([Lease(place, 1, "s1", 0)])
        await here.take([Lease(place, 1, "s2", 2)])

        taken = await here.take([Lease(place, 1, "s3", 0)])
        lost = await gone.renew([Lease(place, 1, "s1", 1), Lease(place, 1, "s9", 5)])

        assert taken == [1]
        assert lost == ["s1"]
        assert await here.take([Lease(place, 1, "s4", 5)]) == [5]
        assert 0 < await client.pttl(f"gesso:presence:numbers:{place.account_id}/1/c") <= 120_000


async def test_a_full_room_has_no_number(leases: list[Leases], place: Place) -> None:
    """PR3 PR22"""
    wanted = [Lease(place, 1, f"s{number}", 0) for number in range(65)]

    assert await leases[0].take(wanted) == [*range(1, 65), None]


async def test_a_room_that_is_left_while_it_is_subscribed_holds_nobody_up(
    shared_valkey: ValkeyServer, place: Place
) -> None:
    """PR22"""
    async with connected(shared_valkey.url) as client:
        way = relay.Relay(
            client,
            Leases(client, "pi_a"),
            "pi_a",
            tick_seconds=0,
            announced=lambda _: None,
            ended=lambda _: None,
            lost=lambda _: None,
        )
        rooms = Rooms(way.opened, way.closed)
        async with background(way.listen()):
            await way.reached(rooms.seat(place, 1))
            left = rooms.seat(Place(place.account_id, "left"), 1)
            waiting = asyncio.create_task(way.reached(left))
            # It waits now, and Valkey has not had its turn.
            await asyncio.sleep(0)
            assert not waiting.done()

            rooms.unseat(left)

            async with asyncio.timeout(relay.REACH_SECONDS / 2):
                await waiting


async def admitted(gateway: Gateway) -> int:
    """The number of the session that is admitted next."""
    async with asyncio.timeout(5):
        async for telling in gateway.tellings():
            for update in telling.updates:
                if update.news.admitted:
                    return update.news.admitted[0].number
    raise AssertionError("its stream has ended")


async def test_a_session_that_comes_twice_at_once_keeps_its_lease(
    shared_valkey: ValkeyServer, place: Place
) -> None:
    """PR2 PR16 PR22"""
    async with connected(shared_valkey.url) as client:
        service = PresenceService(tick_seconds=0, valkey=client)
        with (
            service.connected() as lost,
            service.connected() as newer,
            service.connected() as other,
        ):
            async with background(service.be_one_of_several()):
                lost.join("twice", place, revision=1, term=1)
                newer.join("twice", place, revision=1, term=2)
                number = await admitted(newer)
                other.join("x", place, revision=1)

                assert (number, await admitted(other)) == (1, 2)
