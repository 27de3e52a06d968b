"""Canvases that somebody has open here, and who has to hear what happens in them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from services.presence.domain.audience import Audience, News
from services.presence.domain.roster import Peer, Roster
from services.presence.domain.versions import Version


@dataclass(frozen=True)
class Place:
    """What a room is for: one account's canvas."""

    account_id: str
    canvas_id: str


@dataclass(frozen=True)
class Announcement:
    """What was committed: a version, leases that changed, or that the canvas is gone.

    A canvas that is `deleted` was so before the rest. Without an `incarnation` (0) it is of
    whichever canvas has the id.
    """

    place: Place
    version: Version
    leases_changed: bool = False
    deleted: bool = False
    incarnation: int = 0


class Neighbour(Protocol):
    """Somebody who speaks for peers in rooms, and hears of the others."""

    def wake(self, room: "Room") -> None:
        """Has it look at a room for news, soon."""


class Room:
    """One canvas: its peers, here and at other instances, and who hears of them.

    Its `incarnation` is greater than those of the canvases that had its id before. `seats` is how
    many sessions here are in it or come in.
    """

    def __init__(self, place: Place, incarnation: int) -> None:
        self.place = place
        self.incarnation = incarnation
        self.roster = Roster()
        self.revision = 0
        self.seats = 0
        self._audiences: dict[Neighbour, Audience] = {}

    def listen(self, neighbour: Neighbour) -> None:
        """Has a neighbour hear what happens from now on, and how it is."""
        if neighbour not in self._audiences:
            self._audiences[neighbour] = Audience()
            neighbour.wake(self)

    def ignore(self, neighbour: Neighbour) -> None:
        """Has a neighbour hear nothing more."""
        self._audiences.pop(neighbour, None)

    def admit(self, peer: Peer, neighbour: Neighbour) -> None:
        """Has a peer here that its neighbour has to hear is in."""
        self.put(peer, neighbour, neighbour)
        if self.roster.speaker(peer.session_id) == neighbour:
            self._audiences[neighbour].admit(peer.session_id)
            neighbour.wake(self)

    def put(self, peer: Peer, neighbour: Neighbour, speaker: "Neighbour | str") -> None:
        """Has a peer here as its speaker says: this neighbour, or an instance that is behind it.

        Nothing happens if another has spoken for it since.
        """
        before = self.roster.peer(peer.session_id)
        if before is not None and before.term > peer.term:
            return
        is_new = before is None
        is_taken_over = not is_new and self.roster.speaker(peer.session_id) != speaker
        is_news = self.roster.put(peer, speaker)
        if is_taken_over:
            for audience in self._audiences.values():
                audience.disown(peer.session_id)
        if is_new or is_taken_over:
            self._audiences[neighbour].own(peer.session_id)
        if is_news or is_taken_over:
            self._touch(peer.session_id, neighbour)
        if is_new or is_taken_over:
            # Whether the room is shared may be another thing now.
            neighbour.wake(self)

    def move(self, session_id: str, cursor: bytes, drag: bytes, neighbour: Neighbour) -> None:
        """Keeps the latest presence of a peer of a neighbour."""
        peer = self.roster.peer(session_id)
        if peer is not None and self.roster.speaker(session_id) == neighbour:
            self.put(replace(peer, cursor=cursor, drag=drag), neighbour, neighbour)

    def drop(self, session_id: str, neighbour: Neighbour, speaker: "Neighbour | str") -> None:
        """Lets a peer go, if it is still that speaker's."""
        if self.roster.drop(session_id, speaker):
            audience = self._audiences.get(neighbour)
            if audience is not None:
                audience.disown(session_id)
                neighbour.wake(self)
            self._touch(session_id, neighbour)

    def here(self) -> list[Peer]:
        """The peers that no other instance speaks for."""
        return [
            peer
            for peer in self.roster
            if not isinstance(self.roster.speaker(peer.session_id), str)
        ]

    def revise(self, version: Version, *, leases_changed: bool = False) -> None:
        """Has everybody hear of a version if it is newer, and of leases if they changed."""
        is_newer = version.revision > self.revision
        if is_newer:
            self.revision = version.revision
        elif not leases_changed:
            return
        for neighbour, audience in self._audiences.items():
            if is_newer:
                audience.revise(version)
            if leases_changed:
                audience.revise_leases()
            neighbour.wake(self)

    def catch_up(self, revision: int) -> None:
        """Has everybody hear of a revision that somebody has read, if others have read another."""
        if self.revision:
            self.revise(Version(revision))
        else:
            self.revision = revision

    def renew(self, neighbour: Neighbour) -> None:
        """Has a neighbour hear once more how everything is."""
        audience = self._audiences.get(neighbour)
        if audience is not None:
            audience.renew()
            neighbour.wake(self)

    def take(self, neighbour: Neighbour) -> News | None:
        """What is news to a neighbour, which counts as told; None if it does not listen."""
        audience = self._audiences.get(neighbour)
        return audience.take(self.roster) if audience is not None else None

    def _touch(self, session_id: str, besides: Neighbour) -> None:
        for neighbour, audience in self._audiences.items():
            if neighbour is not besides:
                audience.touch(session_id)
                neighbour.wake(self)


class Rooms:
    """The rooms that somebody is in here.

    `opened` and `closed` are called with a room when it comes and when nobody is in it any more.
    """

    def __init__(
        self,
        opened: Callable[[Room], None] = lambda _: None,
        closed: Callable[[Room], None] = lambda _: None,
    ) -> None:
        self._opened = opened
        self._closed = closed
        self._rooms: dict[Place, Room] = {}

    def at(self, place: Place) -> Room | None:
        """The room of a canvas, None if nobody has it open."""
        return self._rooms.get(place)

    def seat(self, place: Place, incarnation: int) -> Room:
        """The room of a canvas, with one more session in it.

        One that is not known here (`at`) if the room is a later canvas's.
        """
        room = self._rooms.get(place)
        if room is None:
            room = self._rooms[place] = Room(place, incarnation)
            self._opened(room)
        elif room.incarnation > incarnation:
            room = Room(place, incarnation)
        room.seats += 1
        return room

    def unseat(self, room: Room) -> None:
        """Takes a session out of a room, which is forgotten after the last one."""
        room.seats -= 1
        if room.seats == 0 and self._rooms.get(room.place) is room:
            self._forget(room)

    def forget(self, place: Place) -> Room | None:
        """Lets go of a room; who joins from now on is in another one."""
        room = self._rooms.get(place)
        if room is not None:
            self._forget(room)
        return room

    def _forget(self, room: Room) -> None:
        del self._rooms[room.place]
        self._closed(room)
