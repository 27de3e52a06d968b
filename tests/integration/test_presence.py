"""Presence over gRPC: a real service, links as gateways, sessions as windows."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from gesso.canvas.v1 import canvas_pb2
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from gesso.presence.v1 import presence_pb2 as pb
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub

from gateway import presence as gateway_presence
from gateway.mailbox import MAX_FRAMES, Closed
from gateway.pace import AbuseWatch
from gateway.presence import PresenceLink, Session, linked
from servicekit.client import Client
from servicekit.errors import Invalid, Unavailable
from servicekit.identity import Behalf
from tests.support.canvas import Window as Editor
from tests.support.canvas import create_canvas, node
from tests.support.lines import Line
from tests.support.services import (
    canvas_service,
    canvas_settings,
    connected,
    new_account,
    presence_service,
    presence_settings,
)

QUIET_SECONDS = 3600


class Window:
    """A session whose frames are read one by one, within five seconds each."""

    def __init__(self) -> None:
        self.session: Session
        self.self_id = ""
        self._events: asyncio.Queue[bytes | Closed] = asyncio.Queue()
        self.line = Line(self._events.put_nowait)
        self.reads = asyncio.Event()
        self.reads.set()

    async def listen(self) -> None:
        """Takes what its line does not, while it reads."""
        events = self.session.events()
        while True:
            await self.reads.wait()
            event = await anext(events)
            self._events.put_nowait(event)
            if isinstance(event, Closed):
                return

    async def event(self) -> Any:
        async with asyncio.timeout(5):
            event = await self._events.get()
        return event if isinstance(event, Closed) else json.loads(event)

    async def events(self, count: int) -> list[Any]:
        return [await self.event() for _ in range(count)]

    async def welcomed(self) -> Any:
        frame = await self.event()
        assert frame["type"] == "welcome"
        self.self_id = frame["selfId"]
        return frame

    def move(self, cursor: Any, drag: Any = None) -> None:
        self.session.move(json.dumps(cursor).encode(), json.dumps(drag).encode())


@asynccontextmanager
async def window_on(
    link: PresenceLink,
    account_id: str,
    canvas_id: str = "c",
    revision: int = 1,
    incarnation: int = 0,
) -> AsyncIterator[Window]:
    window = Window()
    async with link.session(
        account_id, canvas_id, revision, line=window.line, incarnation=incarnation
    ) as window.session:
        listening = asyncio.create_task(window.listen())
        try:
            yield window
        finally:
            listening.cancel()


class House:
    """One service, the gateways and the windows of one test, closed at its end."""

    def __init__(self, port: int, stack: AsyncExitStack) -> None:
        self.port = port
        self.account_id = new_account().account_id or ""
        self._stack = stack

    async def client(self) -> Client:
        return await self._stack.enter_async_context(connected(self.port))

    async def gateway(self) -> PresenceLink:
        return await self._stack.enter_async_context(linked(await self.client()))

    async def window(
        self,
        link: PresenceLink,
        canvas_id: str = "c",
        *,
        account_id: str = "",
        revision: int = 1,
        incarnation: int = 0,
    ) -> Window:
        return await self._stack.enter_async_context(
            window_on(link, account_id or self.account_id, canvas_id, revision, incarnation)
        )

    async def windows(self, link: PresenceLink, count: int) -> list[Window]:
        """Windows of one canvas that have heard of one another."""
        windows: list[Window] = []
        for _ in range(count):
            newcomer = await self.window(link)
            await newcomer.welcomed()
            for window in windows:
                await window.event()
            windows.append(newcomer)
        return windows

    async def announce(self, revision: int, canvas_id: str = "c", account_id: str = "") -> None:
        await announce(await self.client(), account_id or self.account_id, [(canvas_id, revision)])


async def announce(client: Client, account_id: str, revisions: Iterable[tuple[str, int]]) -> None:
    request = pb.AnnounceRequest(
        invalidations=[
            pb.Invalidation(account_id=account_id, canvas_id=canvas_id, revision=revision)
            for canvas_id, revision in revisions
        ]
    )
    await client.call(PresenceServiceStub(client.channel).Announce, request, Behalf())


def join(session_id: str, account_id: str = "us_a") -> pb.ConnectRequest:
    return pb.ConnectRequest(
        joins=[pb.Join(session_id=session_id, account_id=account_id, canvas_id="c", revision=1)]
    )


def move(session_id: str) -> pb.ConnectRequest:
    return pb.ConnectRequest(moves=[pb.Move(session_id=session_id, cursor=b"1", drag=b"null")])


def leave(session_id: str) -> pb.ConnectRequest:
    return pb.ConnectRequest(left_session_ids=[session_id])


async def _say(*requests: pb.ConnectRequest) -> AsyncIterator[pb.ConnectRequest]:
    for request in requests:
        yield request
    # A stream that ends its requests has left; this one stays.
    await asyncio.Event().wait()


@asynccontextmanager
async def house_with(**settings: object) -> AsyncIterator[House]:
    async with (
        presence_service(presence_settings(**settings)) as port,
        AsyncExitStack() as stack,
    ):
        yield House(port, stack)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with house_with(heartbeat_seconds=QUIET_SECONDS) as house:
        yield house


@pytest.fixture
async def link(house: House) -> PresenceLink:
    return await house.gateway()


def box(name: str) -> dict[str, Any]:
    return {"id": name, "x": 1, "y": 2, "width": 3, "height": 4}


async def test_a_welcome_holds_everybodys_present_state(house: House, link: PresenceLink) -> None:
    """PR4"""
    first, second = await house.windows(link, 2)
    first.move({"x": 1, "y": 2.5}, [box("a")])
    await second.event()

    third = await house.window(link, revision=7)
    welcome = await third.welcomed()

    assert list(welcome) == ["type", "selfId", "number", "peers", "revision", "serverTime"]
    assert (welcome["number"], welcome["revision"]) == (3, 7)
    assert welcome["peers"] == [
        {"id": first.self_id, "number": 1, "cursor": {"x": 1, "y": 2.5}, "drag": [box("a")]},
        {"id": second.self_id, "number": 2, "cursor": None, "drag": None},
    ]
    assert welcome["serverTime"].endswith("Z")


async def test_a_window_at_another_gateway_learns_where_everybody_is(
    house: House, link: PresenceLink
) -> None:
    """PR4"""
    first, second = await house.windows(link, 2)
    first.move({"x": 1, "y": 2.5})
    await second.event()

    third = await house.window(await house.gateway())
    welcome = await third.welcomed()

    # Nobody elsewhere had to know before.
    assert [peer["id"] for peer in welcome["peers"]] == [first.self_id, second.self_id]
    cursors = {peer["id"]: peer["cursor"] for peer in welcome["peers"]}
    while cursors[first.self_id] is None:
        frame = await third.event()
        cursors[frame["id"]] = frame["cursor"]
    assert cursors == {first.self_id: {"x": 1, "y": 2.5}, second.self_id: None}


async def test_the_others_hear_who_joins_and_who_moves(house: House, link: PresenceLink) -> None:
    """PR6"""
    first = await house.window(link)
    await first.welcomed()
    second = await house.window(await house.gateway())
    await second.welcomed()

    joined = await first.event()
    second.move({"x": 3, "y": 4})
    moved = await first.event()

    still = {"type": "peer", "id": second.self_id, "number": 2, "cursor": None, "drag": None}
    assert joined == still
    assert moved == {**still, "cursor": {"x": 3, "y": 4}}


async def test_nothing_is_echoed_to_its_sender(house: House, link: PresenceLink) -> None:
    """PR5"""
    first, second = await house.windows(link, 2)
    first.move({"x": 1, "y": 1})
    await second.event()

    await house.announce(2)

    assert await first.event() == {"type": "invalidate", "revision": 2}


async def test_several_who_move_at_once_each_hear_of_the_others_only() -> None:
    """PR5 PR7"""
    async with house_with(tick_seconds=0.2) as house:
        link = await house.gateway()
        windows = await house.windows(link, 4)
        watcher = await house.window(await house.gateway())
        await watcher.welcomed()
        for window in windows:
            await window.event()

        # The tick has just begun, so these are gathered.
        for x, window in enumerate(windows[:3]):
            window.move({"x": x, "y": 0})
        heard: list[dict[str, int]] = [{} for _ in windows]
        for own, window in enumerate(windows):
            while len(heard[own]) < 3 - (own < 3):
                frame = await window.event()
                for peer in frame.get("peers", [frame]):
                    heard[own][peer["id"]] = peer["cursor"]["x"]

    assert heard == [{windows[x].self_id: x for x in range(3) if x != own} for own in range(4)]


async def test_a_burst_is_told_as_its_newest_state() -> None:
    """PR7"""
    async with house_with(tick_seconds=0.2) as house:
        link = await house.gateway()
        first, second = await house.windows(link, 2)
        first.move({"x": 0, "y": 0})
        at_once = await second.event()

        for x in range(1, 50):
            first.move({"x": x, "y": 0})
        after_a_tick = await second.event()
        await house.announce(2)
        then = await second.event()

    assert (at_once["cursor"]["x"], after_a_tick["cursor"]["x"]) == (0, 49)
    assert then["type"] == "invalidate"


async def test_what_is_as_it_was_is_not_told(house: House, link: PresenceLink) -> None:
    """PR6"""
    first, second = await house.windows(link, 2)
    first.move({"x": 1, "y": 1})
    await second.event()

    first.move({"x": 1, "y": 1})
    await house.announce(2)

    assert (await second.event())["type"] == "invalidate"


async def test_a_window_that_closes_leaves(house: House, link: PresenceLink) -> None:
    """PR9"""
    first = await house.window(link)
    await first.welcomed()
    async with window_on(link, house.account_id) as second:
        await second.welcomed()
        second.move({"x": 1, "y": 1})
        await first.events(1)
        left = second.self_id

    while (frame := await first.event())["type"] == "peer":
        assert frame["id"] == left

    assert frame == {"type": "leave", "id": left}


async def test_when_a_gateway_is_lost_all_its_windows_leave(house: House) -> None:
    """PR9"""
    stays = await house.window(await house.gateway())
    await stays.welcomed()
    client = await house.client()
    stub = PresenceServiceStub(client.channel)
    requests = _say(*(join(session_id, house.account_id) for session_id in "abc"))
    known: set[str] = set()

    async with client.exchange(stub.Connect, requests, Behalf()):
        while known != set("abc"):
            frame = await stays.event()
            known |= {peer["id"] for peer in frame.get("peers", [frame])}

    assert [await stays.event() for _ in "abc"] == [
        {"type": "leave", "id": session_id} for session_id in "abc"
    ]


async def test_the_65th_window_is_refused_and_a_freed_number_is_used_again(
    house: House, link: PresenceLink
) -> None:
    """PR2 PR3"""
    windows = [await house.window(link) for _ in range(63)]
    numbers = [(await window.welcomed())["number"] for window in windows]
    async with window_on(await house.gateway(), house.account_id) as last:
        numbers.append((await last.welcomed())["number"])
        refused = await house.window(link)

        closed = await refused.event()
        refused.move({"x": 1, "y": 1})

    # The 64th has left; its number goes to the next one as soon as that is known.
    while (frame := await windows[0].event())["type"] != "leave":
        pass
    again = await (await house.window(link)).welcomed()
    assert sorted(numbers) == list(range(1, 65))
    assert closed == Closed(4429, "At most 64 windows can have a canvas open.")
    assert frame["id"] == last.self_id
    assert (again["number"], len(again["peers"])) == (64, 63)


async def test_the_lowest_free_number_is_given_and_nobody_gets_another(
    house: House, link: PresenceLink
) -> None:
    """PR2"""
    async with window_on(link, house.account_id) as first:
        await first.welcomed()
        second = await house.window(link)
        await second.welcomed()
        third = await house.window(link)
        await third.welcomed()
    while (await third.event())["type"] != "leave":
        pass

    welcome = await (await house.window(link)).welcomed()

    assert welcome["number"] == 1
    assert {peer["id"]: peer["number"] for peer in welcome["peers"]} == {
        second.self_id: 2,
        third.self_id: 3,
    }


async def test_other_accounts_and_other_canvases_hear_nothing(
    house: House, link: PresenceLink
) -> None:
    """PR1"""
    here, also_here = await house.windows(link, 2)
    elsewhere = await house.window(link, "d")
    someone = await house.window(link, account_id="us_someone")
    peers = [(await window.welcomed())["peers"] for window in (elsewhere, someone)]

    here.move({"x": 1, "y": 1})
    await also_here.event()
    await house.announce(2)
    await also_here.event()
    await house.announce(8, "d")
    await house.announce(9, "c", "us_someone")

    assert peers == [[], []]
    assert await elsewhere.event() == {"type": "invalidate", "revision": 8}
    assert await someone.event() == {"type": "invalidate", "revision": 9}


async def test_announced_revisions_reach_every_gateway_the_newest_only(
    house: House, link: PresenceLink
) -> None:
    """PR10"""
    first = await house.window(link)
    await first.welcomed()
    second = await house.window(await house.gateway())
    await second.welcomed()
    await first.event()

    await announce(await house.client(), house.account_id, [("c", 3), ("c", 5), ("c", 4)])
    newest = [await first.event(), await second.event()]
    await house.announce(5)
    await house.announce(4)
    await house.announce(6)
    then = [await first.event(), await second.event()]

    assert newest == [{"type": "invalidate", "revision": 5}] * 2
    assert then == [{"type": "invalidate", "revision": 6}] * 2


async def test_more_than_500_announcements_are_refused(house: House) -> None:
    with pytest.raises(Invalid):
        await announce(await house.client(), "us_a", [("c", 1)] * 501)


async def test_a_newer_revision_that_a_newcomer_brings_is_told_to_the_others(
    house: House, link: PresenceLink
) -> None:
    """PR10"""
    first = await house.window(link, revision=1)
    await first.welcomed()

    second = await house.window(link, revision=4)
    behind = await house.window(link, revision=2)

    assert (await second.welcomed())["revision"] == 4
    assert (await behind.welcomed())["revision"] == 4
    assert {"type": "invalidate", "revision": 4} in await first.events(2)


async def test_a_commit_of_the_canvas_service_is_heard(
    house: House, link: PresenceLink, shared_database: str, objects_url: str
) -> None:
    """PR10"""
    settings = canvas_settings(
        shared_database, objects_url, presence_address=f"127.0.0.1:{house.port}"
    )
    window = await house.window(link, "mine", revision=0)
    await window.welcomed()

    async with canvas_service(settings) as canvas:
        stub = CanvasServiceStub(canvas.channel)
        made = b'{"title":"A canvas","nodes":[{"id":"a","type":"text"}]}'
        create = canvas_pb2.Operation(create_canvas=canvas_pb2.CreateCanvas(canvas=made))
        request = canvas_pb2.ApplyOperationsRequest(
            canvas_id="mine", mutation_id="m", base_revision=0, operations=[create]
        )
        await canvas.call(stub.ApplyOperations, request, Behalf(account_id=house.account_id))
        heard = await window.event()

    assert len(heard.pop("contentHash")) == 16
    assert heard == {
        "type": "invalidate",
        "revision": 1,
        "mutationId": "m",
        "baseRevision": 0,
        "operations": [
            {
                "type": "create_canvas",
                "canvas": {
                    "title": "A canvas",
                    "nodes": [{"id": "a", "type": "text"}],
                    "connections": [],
                },
            }
        ],
    }


async def test_a_lease_that_is_given_or_taken_back_is_heard(
    house: House, link: PresenceLink, shared_database: str, objects_url: str
) -> None:
    """PR10"""
    settings = canvas_settings(
        shared_database, objects_url, presence_address=f"127.0.0.1:{house.port}"
    )
    async with canvas_service(settings) as canvas:
        editor = Editor(canvas, Behalf(account_id=house.account_id))
        await editor.apply(create_canvas(nodes=[node("a")]))
        window = await house.window(link, editor.canvas_id)
        await window.welcomed()
        held = await editor.acquire("a", "s")
        given = await window.event()
        await editor.release("a", "s", held.token)
        taken_back = await window.event()

    assert given == taken_back == {"type": "invalidate", "revision": 1}


async def test_every_session_hears_heartbeats() -> None:
    """PR11"""
    async with house_with(heartbeat_seconds=0.05) as house:
        windows = [await house.window(await house.gateway()) for _ in range(2)]
        for window in windows:
            await window.welcomed()

        for window in windows:
            while (frame := await window.event())["type"] != "heartbeat":
                pass
            assert list(frame) == ["type", "serverTime"]


async def test_a_window_that_reads_too_slowly_is_welcomed_anew_with_the_newest_state(
    house: House, link: PresenceLink
) -> None:
    """PR8"""
    mover, watcher, slow = await house.windows(link, 3)
    slow.line.slow = True
    slow.reads.clear()
    slow.session.hear(b'{"type":"heartbeat"}')
    assert await slow.event() == {"type": "heartbeat"}
    # One more than may wait, while its reader is busy.
    for _ in range(MAX_FRAMES + 1):
        slow.session.hear(b'{"type":"heartbeat"}')
    mover.move({"x": 4, "y": 0})
    await watcher.event()
    assert (await slow.event())["cursor"] == {"x": 4, "y": 0}
    await house.announce(9)
    await watcher.event()

    slow.line.slow = False
    slow.reads.set()
    welcome = await slow.event()
    await house.announce(10)
    next_frame = await slow.event()

    assert (welcome["type"], welcome["selfId"], welcome["number"]) == ("welcome", slow.self_id, 3)
    assert [peer["cursor"] for peer in welcome["peers"]] == [{"x": 4, "y": 0}, None]
    assert welcome["revision"] == 9
    assert next_frame["revision"] == 10


async def test_what_is_over_the_rate_arrives_at_last(house: House, link: PresenceLink) -> None:
    """PR13"""
    first, second = await house.windows(link, 2)

    for x in range(300):
        first.move({"x": x, "y": 0})
        await asyncio.sleep(0)
    first.move(None, [])

    heard = [await second.event()]
    while heard[-1]["drag"] is None:
        heard.append(await second.event())
    assert heard[-1]["cursor"] is None
    assert len(heard) < 100


async def test_lasting_abuse_ends_the_session_for_everybody(
    house: House, link: PresenceLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PR14"""
    first, second = await house.windows(link, 2)
    monkeypatch.setattr(AbuseWatch, "count", lambda _watch, _now: True)

    first.move({"x": 1, "y": 1})

    assert await first.event() == Closed(4429, "Too many frames for too long.")
    assert await second.event() == {"type": "leave", "id": first.self_id}


async def test_after_a_restart_everybody_is_who_they_were() -> None:
    """PR16"""
    settings = presence_settings(heartbeat_seconds=QUIET_SECONDS)
    async with AsyncExitStack() as stack:
        async with presence_service(settings) as port:
            house = House(port, stack)
            link = await house.gateway()
            first, second = await house.windows(link, 2)
            other = await house.window(await house.gateway())
            assert (await other.welcomed())["number"] == 3
            [await window.event() for window in (first, second)]
            async with window_on(link, house.account_id) as leaver:
                await leaver.welcomed()
                [await window.event() for window in (first, second, other)]
        # Windows of one gateway see one another all the while.
        first.move({"x": 2, "y": 2})
        while (frame := await second.event())["type"] != "peer":
            assert frame == {"type": "leave", "id": leaver.self_id}
        assert (frame["id"], frame["cursor"]) == (first.self_id, {"x": 2, "y": 2})

        again = msgspec.structs.replace(settings, listen=f"127.0.0.1:{port}")
        async with presence_service(again):
            cursor = None
            while cursor is None:
                frame = await other.event()
                assert frame["type"] in ("peer", "peers", "leave")
                cursors = {it["id"]: it.get("cursor") for it in frame.get("peers", [frame])}
                cursor = cursors.get(first.self_id)
            newcomer = await house.window(link)
            welcome = await newcomer.welcomed()
            numbers = {peer["id"]: peer["number"] for peer in welcome["peers"]}

    assert numbers == {first.self_id: 1, second.self_id: 2, other.self_id: 3}
    assert welcome["number"] == 4
    assert cursor == {"x": 2, "y": 2}


async def test_without_presence_a_window_is_sent_away_and_those_elsewhere_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PR16"""
    monkeypatch.setattr(gateway_presence, "FORGET_SECONDS", 0.1)
    async with AsyncExitStack() as stack:
        async with presence_service(presence_settings()) as port:
            house = House(port, stack)
            window = await house.window(await house.gateway())
            await window.welcomed()
            other = await house.window(await house.gateway())
            await other.welcomed()
            await window.event()

        gone = await window.event()
        monkeypatch.setattr(gateway_presence, "WELCOME_SECONDS", 0.1)
        late = await house.window(await house.gateway())
        closed = await late.event()

    assert gone == {"type": "leave", "id": other.self_id}
    assert isinstance(closed, Closed)
    assert closed.code == 1013


async def _last(responses: AsyncIterator[pb.ConnectResponse]) -> None:
    async for _ in responses:
        pass


@pytest.mark.parametrize(
    "requests",
    [
        [join("a"), join("a")],
        [move("a")],
        [join("a"), leave("a"), move("a")],
        [leave("a")],
        [join("")],
        [join("x" * 81)],
        [pb.ConnectRequest(joins=[*join("a").joins, *join("a").joins])],
        [pb.ConnectRequest(left_session_ids=["a"], joins=join("a").joins)],
    ],
)
async def test_a_gateway_that_mixes_up_sessions_loses_its_stream(
    house: House, requests: list[pb.ConnectRequest]
) -> None:
    """PR15"""
    client = await house.client()
    stub = PresenceServiceStub(client.channel)

    async with client.exchange(stub.Connect, _say(*requests), Behalf()) as responses:
        with pytest.raises(Invalid):
            await _last(responses)

    # All its sessions have left: the id is free.
    async with client.exchange(stub.Connect, _say(join("a")), Behalf()) as responses:
        response = await anext(responses)
    [room] = response.rooms
    assert [it.session_id for it in room.admissions] == ["a"]


async def test_an_instance_that_goes_away_ends_its_streams() -> None:
    """PR17"""
    async with AsyncExitStack() as outer:
        async with presence_service(presence_settings(drain_seconds=30)) as port:
            client = await outer.enter_async_context(connected(port))
            stub = PresenceServiceStub(client.channel)
            responses = await outer.enter_async_context(
                client.exchange(stub.Connect, _say(join("a")), Behalf())
            )
            await anext(responses)

        with pytest.raises(Unavailable):
            await anext(responses)
