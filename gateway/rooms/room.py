"""One canvas that windows of this gateway have open: tells them of one another, tick by tick."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gateway.pace import Ticks
from gateway.rooms.audience import Audience
from gateway.rooms.frames import deliveries, invalidate, welcome
from gateway.rooms.peers import Peer, Presence
from servicekit.times import rfc3339


@dataclass(frozen=True)
class Place:
    """What a room is for: one account's canvas."""

    account_id: str
    canvas_id: str


class Window(Protocol):
    """A socket in a room."""

    @property
    def show(self) -> Callable[[bytes], None]:
        """Sends a message that tells of peers; nothing is there for it while it is busy."""

    def begin(self, welcome: bytes) -> None:
        """Sends the message that tells everything."""

    @property
    def hear(self) -> Callable[[bytes], None]:
        """Takes a text that may wait."""


class Room:
    """The windows of this gateway in a room, and all peers that are in it.

    Its `incarnation` is greater than those of the canvases that had its id before. What changes
    after silence is told at once, in the same turn of the loop; then, while there is much to tell,
    what changes within a tick (PR7).
    """

    def __init__(self, place: Place, incarnation: int, ticks: Ticks) -> None:
        self.place = place
        self.incarnation = incarnation
        self.shared = False
        self._revision = 0
        self._windows: dict[str, Window] = {}
        self._peers: dict[str, Peer] = {}
        self._elsewhere: dict[str, Peer] = {}
        self._audience = Audience()
        self._ticks = ticks
        self._loop = asyncio.get_running_loop()
        self._telling: asyncio.Handle | None = None
        self._due = self._loop.time()

    def __len__(self) -> int:
        return len(self._windows)

    def window_ids(self) -> tuple[str, ...]:
        """The windows of this gateway, whether they have a number or not."""
        return tuple(self._windows)

    def enter(self, session_id: str, window: Window) -> None:
        """Lets a window in; it hears nothing before it has a number."""
        self._windows[session_id] = window

    def admit(self, session_id: str, number: int, presence: Presence) -> None:
        """Gives a window that is here its number and has it welcomed (PR4)."""
        self._peers[session_id] = Peer(session_id, number, presence)
        self.welcome(session_id)
        self._touch(session_id)

    def welcome(self, session_id: str) -> None:
        """Has a window told everything anew, if it has its number."""
        if session_id in self._peers and session_id in self._windows:
            self._audience.welcome(session_id)
            self._tell_soon()

    def pause(self, session_id: str) -> None:
        """Has a window told nothing of its peers while what it was told is on its way (PR8)."""
        self._audience.pause(session_id)

    def resume(self, session_id: str) -> None:
        """Has a window told what has become of its peers meanwhile."""
        self._audience.resume(session_id)
        self._tell_soon()

    def move(self, session_id: str, presence: Presence) -> None:
        """Shows the others where a window is, if it has its number."""
        peer = self._peers.get(session_id)
        if peer is not None:
            self._peers[session_id] = Peer(session_id, peer.number, presence)
            self._touch(session_id)

    def leave(self, session_id: str) -> None:
        """Lets a window go."""
        self._windows.pop(session_id, None)
        self._audience.dismiss(session_id)
        if self._peers.pop(session_id, None) is not None:
            self._touch(session_id)
        if not self._windows and self._telling is not None:
            self._telling.cancel()

    def hear_of(self, peers: Iterable[Peer], left: Iterable[str]) -> None:
        """Takes over who came, changed or went at other gateways."""
        for session_id in left:
            if self._elsewhere.pop(session_id, None) is not None:
                del self._peers[session_id]
                self._touch(session_id)
        for peer in peers:
            if peer.session_id not in self._windows:
                self._elsewhere[peer.session_id] = peer
                self._peers[peer.session_id] = peer
                self._touch(peer.session_id)

    def elsewhere(self) -> tuple[Peer, ...]:
        """The peers at other gateways, as they were heard of last."""
        return tuple(self._elsewhere.values())

    def forget(self, peers: Iterable[Peer]) -> None:
        """Takes peers for gone of which nothing was heard since."""
        self.hear_of(
            (), [it.session_id for it in peers if self._elsewhere.get(it.session_id) is it]
        )

    def revise(self, revision: int) -> None:
        """Has newcomers told this revision, if it is newer."""
        self._revision = max(self._revision, revision)

    def catch_up(self, revision: int) -> None:
        """Has everybody hear of a revision that somebody has read, if it is news."""
        if revision > self._revision:
            self._revision = revision
            self.pass_on(invalidate(revision))

    def pass_on(self, text: bytes) -> None:
        """Has everybody who has been welcomed hear a text."""
        for session_id in self._audience.welcomed():
            self._windows[session_id].hear(text)

    def _touch(self, session_id: str) -> None:
        self._audience.touch(session_id)
        self._ticks.count(len(self._audience), self._loop.time())
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._telling is not None:
            return
        if self._due > self._loop.time():
            self._telling = self._loop.call_at(self._due, self._tell)
        else:
            self._telling = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        turn = self._audience.take(self._peers)
        windows = self._windows
        for news in turn.news:
            for delivery in deliveries(news):
                for session_id, message in delivery.each():
                    windows[session_id].show(message)
        for session_id in turn.newcomers:
            message = welcome(
                self._peers[session_id],
                self._peers.values(),
                revision=self._revision,
                server_time=rfc3339(datetime.now(UTC)),
            )
            windows[session_id].begin(message)
        now = self._loop.time()
        self._due = now + self._ticks.seconds(now)
