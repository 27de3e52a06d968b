"""Any interleaving of what windows, gateways and commits do leaves everybody with the truth."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
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

from services.presence.domain.failures import SessionIdReused, SessionUnknown
from services.presence.domain.frames import Delivery
from services.presence.domain.versions import Version
from services.presence.service import Closing, Gateway, Place, PresenceService

ROOM = Place("us_a", "c")
OTHER_ROOM = Place("us_a", "d")
CURSORS = st.sampled_from([b"null", b'{"x":1,"y":2}', b'{"x":3,"y":4}'])


@dataclass
class Window:
    """What one window takes to be true, from the frames that it got."""

    session_id: str
    place: Place
    number: int | None = None
    peers: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    closed: bool = False

    def read(self, frame: Any) -> None:
        if frame["type"] == "welcome":
            assert frame["selfId"] == self.session_id
            assert self.number in (None, frame["number"])
            self.number = frame["number"]
            self.peers = {peer["id"]: peer for peer in frame["peers"]}
            assert len(self.peers) == len(frame["peers"])
            assert self.session_id not in self.peers
            self.revision = frame["revision"]
            return
        assert self.number is not None, "nothing comes before the welcome"
        match frame.pop("type"):
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
        assert peer["id"] != self.session_id, "nothing is echoed"
        assert self.peers.get(peer["id"]) != peer, "nothing is told twice"
        self.peers[peer["id"]] = peer


@dataclass
class Line:
    """A gateway's stream and the windows behind it."""

    gateway: Gateway
    context: ExitStack
    windows: dict[str, Window] = field(default_factory=dict)

    def tell(self) -> None:
        """The gateway reads what waits for it."""
        told: dict[str, int] = {}
        for telling in self.gateway.take():
            match telling:
                case Closing():
                    window = self.windows[telling.session_id]
                    assert (telling.code, window.number) == (4429, None)
                    window.closed = True
                case Delivery():
                    self._deliver(telling, told)
        assert all(count == 1 for count in told.values()), "one frame a tick"

    def _deliver(self, delivery: Delivery, told: dict[str, int]) -> None:
        cuts = {cut.session_id: cut for cut in delivery.omissions}
        assert cuts.keys() <= set(delivery.session_ids)
        for session_id in delivery.session_ids:
            frame = delivery.frame
            if session_id in cuts:
                frame = frame[: cuts[session_id].start] + frame[cuts[session_id].end :]
            value = json.loads(frame)
            assert delivery.replaces == (value["type"] == "welcome")
            if value["type"] in ("peer", "peers"):
                told[session_id] = told.get(session_id, 0) + 1
            self.windows[session_id].read(value)


class Presence(RuleBasedStateMachine):
    """Drives the service beside a model of who is where."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.service = PresenceService(tick_seconds=0)
        self.lines: list[Line] = []
        self.made = 0
        # The model: for each room its peers in order, as a frame shows them.
        self.rooms: dict[Place, dict[str, dict[str, Any]]] = {ROOM: {}, OTHER_ROOM: {}}
        self.revisions: dict[Place, int] = {ROOM: 0, OTHER_ROOM: 0}

    @initialize()
    def two_gateways(self) -> None:
        self.lines = [self._line(), self._line()]

    @rule(
        target=sessions,
        line=st.integers(0, 1),
        place=st.sampled_from([ROOM, ROOM, ROOM, OTHER_ROOM]),
        count=st.sampled_from([1, 1, 1, 2, 5, 40]),
        revision=st.integers(0, 20),
    )
    def join(self, line: int, place: Place, count: int, revision: int) -> Any:
        ids = []
        for _ in range(count):
            self.made += 1
            session_id = f"s{self.made}"
            ids.append((line, session_id))
            self.lines[line].windows[session_id] = Window(session_id, place)
            self.lines[line].gateway.join(session_id, place, revision)
            free = set(range(1, 65)) - {peer["number"] for peer in self.rooms[place].values()}
            if free:
                shown = {"id": session_id, "number": min(free), "cursor": None, "drag": None}
                self.rooms[place][session_id] = shown
                self.revisions[place] = max(self.revisions[place], revision)
        return multiple(*ids)

    @rule(session=sessions, cursor=CURSORS, drag=st.sampled_from([b"null", b"[]"]))
    def move(self, session: tuple[int, str], cursor: bytes, drag: bytes) -> None:
        line, session_id = session
        window = self.lines[line].windows.get(session_id)
        if window is None:
            with pytest.raises(SessionUnknown):
                self.lines[line].gateway.move(session_id, cursor, drag)
            return
        self.lines[line].gateway.move(session_id, cursor, drag)
        if session_id in self.rooms[window.place]:
            shown = self.rooms[window.place][session_id]
            shown |= {"cursor": json.loads(cursor), "drag": json.loads(drag)}

    @rule(session=consumes(sessions))
    def leave(self, session: tuple[int, str]) -> None:
        line, session_id = session
        window = self.lines[line].windows.pop(session_id, None)
        if window is None:
            with pytest.raises(SessionUnknown):
                self.lines[line].gateway.leave(session_id)
            return
        self.lines[line].gateway.leave(session_id)
        self._left(window)

    @rule(session=sessions, line=st.integers(0, 1))
    def join_twice(self, session: tuple[int, str], line: int) -> None:
        if session[1] in self.lines[session[0]].windows:
            with pytest.raises(SessionIdReused):
                self.lines[line].gateway.join(session[1], ROOM, 0)

    @rule(session=sessions)
    def drop_frames(self, session: tuple[int, str]) -> None:
        line, session_id = session
        window = self.lines[line].windows.get(session_id)
        if window is not None:
            window.peers, window.revision = {"dropped": None}, 0
            self.lines[line].gateway.resync(session_id)

    @rule(line=st.integers(0, 1))
    def lose_a_gateway(self, line: int) -> None:
        lost = self.lines[line]
        lost.context.close()
        for window in lost.windows.values():
            self._left(window)
        assert list(lost.gateway.take()) == []
        self.lines[line] = self._line()

    @rule(
        place=st.sampled_from([ROOM, OTHER_ROOM]),
        revision=st.integers(0, 20),
        base=st.integers(0, 20),
        leases_changed=st.booleans(),
    )
    def announce(self, place: Place, revision: int, base: int, *, leases_changed: bool) -> None:
        # In place of operations the revisions that they lead to.
        led = list(range(base + 1, revision + 1))
        version = Version(
            revision,
            "hash",
            base_revision=base,
            operations=json.dumps(led).encode() if led else None,
        )
        self.service.announce(place, version, leases_changed=leases_changed)
        if self.rooms[place]:
            self.revisions[place] = max(self.revisions[place], revision)

    @rule(line=st.integers(0, 1))
    def tick(self, line: int) -> None:
        self.lines[line].tell()
        for window in self.lines[line].windows.values():
            room = self.rooms[window.place]
            assert window.closed == (window.session_id not in room)
            if not window.closed:
                assert window.number == room[window.session_id]["number"]
                assert window.peers == {
                    session_id: peer
                    for session_id, peer in room.items()
                    if session_id != window.session_id
                }
                assert window.revision == self.revisions[window.place]

    @rule()
    def silence(self) -> None:
        for line in (0, 1):
            self.tick(line)
            assert list(self.lines[line].gateway.take()) == []

    @invariant()
    def numbers_are_unique(self) -> None:
        for room in self.rooms.values():
            numbers = [peer["number"] for peer in room.values()]
            assert len(set(numbers)) == len(numbers) <= 64

    def teardown(self) -> None:
        for line in self.lines:
            line.context.close()

    def _line(self) -> Line:
        context = ExitStack()
        return Line(context.enter_context(self.service.connected()), context)

    def _left(self, window: Window) -> None:
        room = self.rooms[window.place]
        room.pop(window.session_id, None)
        if not room:
            self.revisions[window.place] = 0


def test_any_interleaving_leaves_every_window_with_the_truth() -> None:
    """PR1 PR2 PR3 PR4 PR5 PR6 PR7 PR8 PR9 PR10 PR15"""
    run_state_machine_as_test(
        Presence, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
