"""Any interleaving of what windows, gateways and commits do leaves everybody with the truth."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gesso.presence.v1 import presence_pb2 as pb
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from gateway.mailbox import Closed
from gateway.presence import PresenceLink, Session, Stream
from servicekit.background import background
from services.presence.domain.rooms import Announcement, Place
from services.presence.domain.versions import Version
from services.presence.gateways import Gateway
from services.presence.rpc import hear, response_from_telling
from services.presence.service import PresenceService
from tests.support.lines import Line as HeardLine

ROOM = Place("us_a", "c")
OTHER_ROOM = Place("us_a", "d")
CURSORS = st.sampled_from([None, {"x": 1, "y": 2}, {"x": 3, "y": 4}])


@dataclass(eq=False)
class Window:
    """What one window takes to be true, from the frames that it got."""

    context: AsyncExitStack
    place: Place
    session: Session = field(init=False)
    is_busy: bool = False
    cursor: Any = None
    number: int | None = None
    peers: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    promised: int = 0
    closed: int | None = None
    events: list[bytes | Closed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._line = HeardLine(self._heard)
        self.pass_on, self.begun = self._line.pass_on, self._line.begun

    def send(self, message: bytes) -> None:
        assert not self.is_busy
        self._line.send(message)

    async def listen(self) -> None:
        """Takes what comes, for ever."""
        async for event in self.session.events():
            self._heard(event)

    def _heard(self, event: bytes | Closed) -> None:
        self.events.append(event)

    def take(self) -> None:
        """Reads what has come."""
        events, self.events = self.events, []
        for event in events:
            if isinstance(event, Closed):
                self.closed = event.code
            else:
                self.read(json.loads(event))

    def read(self, frame: Any) -> None:
        kind = frame.pop("type")
        if kind == "welcome":
            assert frame["selfId"] == self.session.session_id
            self.number = frame["number"]
            self.peers = {peer["id"]: peer for peer in frame["peers"]}
            assert len(self.peers) == len(frame["peers"])
            assert frame["selfId"] not in self.peers
            assert frame["revision"] >= self.revision
            self.revision = frame["revision"]
            return
        assert self.number is not None, "nothing comes before the welcome"
        match kind:
            case "peer":
                self._change(frame)
            case "peers":
                assert len(frame["peers"]) > 1
                for peer in frame["peers"]:
                    self._change(peer)
            case "leave":
                del self.peers[frame["id"]]
            case "invalidate":
                # Of leases it is told again where the canvas is.
                assert frame["revision"] >= self.revision
                if "operations" in frame:
                    base = frame["baseRevision"]
                    assert frame["operations"] == list(range(base + 1, frame["revision"] + 1))
                self.revision = frame["revision"]

    def _change(self, peer: Any) -> None:
        assert peer["id"] != self.session.session_id, "nothing is echoed"
        assert self.peers.get(peer["id"]) != peer, "nothing is told twice"
        self.peers[peer["id"]] = peer


class Line:
    """A gateway, its stream to the service, and its windows."""

    def __init__(self, service: PresenceService) -> None:
        self.service = service
        self.link = PresenceLink()
        self.windows: dict[str, Window] = {}
        self.doubted: list[Callable[[], None]] = []
        self.connect()

    def connect(self) -> None:
        """A stream in place of the one before, which the service has still to miss."""
        self.doubted.append(self.link.doubted())
        self.stream: Stream = self.link.renewed()
        self._connected = ExitStack()
        self.end = self._connected.close
        self.gateway: Gateway = self._connected.enter_context(self.service.connected())

    def forget_doubted(self) -> None:
        """Time goes by."""
        for forget in self.doubted:
            forget()
        self.doubted.clear()

    def say(self) -> None:
        """The service takes what the gateway has to say."""
        while (request := self.stream.request()) != pb.ConnectRequest():
            hear(pb.ConnectRequest.FromString(request.SerializeToString()), self.gateway)

    def listen(self) -> None:
        """The gateway takes what the service has to say."""
        for telling in self.gateway.take():
            response = response_from_telling(telling)
            self.stream.receive(pb.ConnectResponse.FromString(response.SerializeToString()))


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when a test says so."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Presence(RuleBasedStateMachine):
    """Drives a service and two gateways beside a model of who is where."""

    windows = Bundle("windows")

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.service = PresenceService(tick_seconds=0)
        self.lines: list[Line] = []
        self.lost: list[Any] = []
        self.forgot = False
        self.revisions: dict[Place, int] = {ROOM: 0, OTHER_ROOM: 0}

    def run(self, coroutine: Any) -> Any:
        # More than a tick.
        self.loop.now += 0.02
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def two_gateways(self) -> None:
        async def made() -> list[Line]:
            return [Line(self.service), Line(self.service)]

        self.lines = self.run(made())

    @rule(
        target=windows,
        line=st.integers(0, 1),
        place=st.sampled_from([ROOM, ROOM, ROOM, OTHER_ROOM]),
        count=st.sampled_from([1, 1, 1, 2, 5, 40]),
    )
    def join(self, line: int, place: Place, count: int) -> Any:
        async def joined() -> list[Window]:
            made = []
            for _ in range(count):
                window = Window(AsyncExitStack(), place)
                window.session = await window.context.enter_async_context(
                    self.lines[line].link.session(
                        place.account_id, place.canvas_id, self.revisions[place], line=window
                    )
                )
                await window.context.enter_async_context(background(window.listen()))
                self.lines[line].windows[window.session.session_id] = window
                made.append(window)
            return made

        return multiple(*((line, window) for window in self.run(joined())))

    @rule(window=windows, cursor=CURSORS)
    def move(self, window: tuple[int, Window], cursor: Any) -> None:
        async def moved() -> None:
            window[1].session.move(json.dumps(cursor).encode(), b"null")

        window[1].cursor = cursor
        self.run(moved())

    @rule(window=consumes(windows))
    def leave(self, window: tuple[int, Window]) -> None:
        self.lines[window[0]].windows.pop(window[1].session.session_id)
        self.run(window[1].context.aclose())

    @rule(window=windows)
    def take_all_or_not(self, window: tuple[int, Window]) -> None:
        """A window does not take all that was sent, or has taken it now."""
        self.run(_in_loop(partial(self._take_all_or_not, window[1])))

    def _take_all_or_not(self, window: Window) -> None:
        window.is_busy = not window.is_busy
        if window.is_busy:
            window.session.pause()
        else:
            window.session.resume()

    @rule(line=st.integers(0, 1))
    def say(self, line: int) -> None:
        self.run(_in_loop(self.lines[line].say))

    @rule(line=st.integers(0, 1))
    def listen(self, line: int) -> None:
        self.run(_in_loop(self.lines[line].listen))

    @rule(line=st.integers(0, 1), at_once=st.booleans())
    def lose_a_stream(self, line: int, *, at_once: bool) -> None:
        # What it had still to tell of commits is lost with it.
        self.forgot = True
        end = self.lines[line].end
        self.run(_in_loop(self.lines[line].connect))
        if at_once:
            end()
        else:
            self.lost.append(end)

    @rule()
    def miss_lost_streams(self) -> None:
        for end in self.lost:
            end()
        self.lost.clear()

    @rule()
    def restart(self) -> None:
        """All that the service knew is gone."""
        self.miss_lost_streams()
        self.service = PresenceService(tick_seconds=0)
        for line in self.lines:
            line.end()
            line.service = self.service
            self.run(_in_loop(line.connect))
        self.forgot = True

    @rule(
        place=st.sampled_from([ROOM, OTHER_ROOM]),
        steps=st.integers(0, 3),
        leases_changed=st.booleans(),
    )
    def commit(self, place: Place, steps: int, *, leases_changed: bool) -> None:
        base = self.revisions[place]
        self.revisions[place] += steps
        # In place of operations the revisions that they lead to.
        led = list(range(base + 1, base + steps + 1))
        version = Version(
            self.revisions[place],
            "hash",
            base_revision=base,
            operations=json.dumps(led).encode() if led else None,
        )
        self.run(self.service.announce([Announcement(place, version, leases_changed)]))
        for line in self.lines:
            for window in line.windows.values():
                if window.place == place and window.number is not None:
                    window.promised = self.revisions[place]

    @rule()
    def silence(self) -> None:
        """Everything is said: everybody knows the truth."""
        self.miss_lost_streams()
        for _ in range(4):
            for line in self.lines:
                self.run(_in_loop(line.say))
            for line in self.lines:
                self.run(_in_loop(line.listen))
        for line in self.lines:
            self.run(_in_loop(line.forget_doubted))
            assert line.stream.request() == pb.ConnectRequest()
            assert list(line.gateway.take()) == []
        everybody = [window for line in self.lines for window in line.windows.values()]
        for window in everybody:
            if window.is_busy:
                self.run(_in_loop(partial(self._take_all_or_not, window)))
        self.run(_read(everybody))
        for place in (ROOM, OTHER_ROOM):
            all_of_it = [it for it in everybody if it.place == place]
            assert {it.closed for it in all_of_it} <= {None, 4429}
            self._check_room([it for it in all_of_it if it.closed is None])

    def _check_room(self, here: list[Window]) -> None:
        truth = {
            it.session.session_id: {
                "id": it.session.session_id,
                "number": it.number,
                "cursor": it.cursor,
                "drag": None,
            }
            for it in here
        }
        numbers = [it.number for it in here]
        assert len(set(numbers)) == len(numbers)
        assert all(number is not None and 1 <= number <= 64 for number in numbers)
        for window in here:
            own = window.session.session_id
            assert window.peers == {name: peer for name, peer in truth.items() if name != own}
            # Before the welcome nothing was promised; who reads the canvas then misses nothing.
            assert self.forgot or window.revision >= window.promised

    @invariant()
    def nobody_sees_what_cannot_be(self) -> None:
        everybody = [window for line in self.lines for window in line.windows.values()]
        self.run(_read(everybody))

    def teardown(self) -> None:
        async def closed() -> None:
            for line in self.lines:
                for window in line.windows.values():
                    await window.context.aclose()

        self.run(closed())
        self.loop.close()


async def _in_loop(step: Any) -> None:
    step()
    # A room tells in the next turn.
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _read(windows: list[Window]) -> None:
    """Windows take what waits for them."""
    for _ in range(4):
        await asyncio.sleep(0)
    for window in windows:
        window.take()


def test_any_interleaving_leaves_every_window_with_the_truth() -> None:
    """PR1 PR2 PR3 PR4 PR5 PR6 PR7 PR8 PR9 PR10 PR15 PR16"""
    run_state_machine_as_test(
        Presence, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
    )
