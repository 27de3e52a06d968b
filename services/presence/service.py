"""What gateways can say of their sockets, and what they have to hear."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from servicekit.errors import Failure, Invalid, Unavailable
from servicekit.times import rfc3339
from services.presence.domain.audience import Audience
from services.presence.domain.failures import RoomFull, SessionIdReused, SessionUnknown
from services.presence.domain.frames import Delivery, deliveries, heartbeat
from services.presence.domain.roster import Roster
from services.presence.domain.versions import Version

MAX_ID_LENGTH = 80
CLOSE_LIMIT = 4429
CLOSE_DELETED = 4404


@dataclass(frozen=True)
class Place:
    """What a room is for: one account's canvas."""

    account_id: str
    canvas_id: str


@dataclass(frozen=True)
class Closing:
    """The end of a socket: the WebSocket close code, and why, for people."""

    session_id: str
    code: int
    reason: str


class Room:
    """A canvas that somebody has open, and the gateways whose sockets are in it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.roster = Roster()
        self.revision = 0
        self.audiences: dict[Gateway, Audience] = {}

    def touch(self, session_id: str) -> None:
        """Has all gateways look at a peer that came, changed or went."""
        for gateway, audience in self.audiences.items():
            audience.touch(session_id)
            gateway.wake(self)

    def revise(self, version: Version, *, leases_changed: bool = False) -> None:
        """Has all gateways hear of a version if it is newer, and of leases if they changed."""
        is_newer = version.revision > self.revision
        if is_newer:
            self.revision = version.revision
        elif not leases_changed:
            return
        for gateway, audience in self.audiences.items():
            if is_newer:
                audience.revise(version)
            if leases_changed:
                audience.revise_leases()
            gateway.wake(self)


class Rooms:
    """The rooms that somebody is in, and the ids of all sessions."""

    def __init__(self) -> None:
        self._rooms: dict[Place, Room] = {}
        self.session_ids: set[str] = set()

    def at(self, place: Place) -> Room | None:
        """The room of a canvas, None if nobody has it open."""
        return self._rooms.get(place)

    def opened(self, place: Place) -> Room:
        """The room of a canvas."""
        return self._rooms.setdefault(place, Room(place))

    def tidy(self, room: Room) -> None:
        """Forgets a room that nobody is in."""
        if not room.roster and self._rooms.get(room.place) is room:
            del self._rooms[room.place]

    def close(self, place: Place) -> None:
        """Has everybody in a room closed; who joins from now on is in another one."""
        room = self._rooms.pop(place, None)
        if room is not None:
            for gateway in room.audiences:
                gateway.close(room)


class Gateway:
    """The sockets of one gateway, and what it has still to be told.

    What waits is never more than the rooms that its sockets are in, however slow it is.
    """

    def __init__(self, rooms: Rooms, *, tick_seconds: float) -> None:
        self._rooms = rooms
        self._tick_seconds = tick_seconds
        # The room that each session is in, None for one that was refused.
        self._seats: dict[str, Room | None] = {}
        self._closings: dict[str, Closing] = {}
        self._stale: dict[Room, None] = {}
        self._beating = False
        self._news = asyncio.Event()
        self._ended = False
        self._failure: Failure | None = None

    def join(self, session_id: str, place: Place, revision: int) -> None:
        """Takes a session in, or closes it if the room is full (PR2, PR3).

        Raises `SessionIdReused`, and `Invalid` for what is no id.
        """
        if not (0 < len(session_id) <= MAX_ID_LENGTH and place.account_id and place.canvas_id):
            raise Invalid("A session has an id of 1 to 80 characters, an account and a canvas.")
        if session_id in self._rooms.session_ids:
            raise SessionIdReused(session_id)
        self._rooms.session_ids.add(session_id)
        room = self._rooms.opened(place)
        try:
            room.roster.join(session_id)
        except RoomFull as full:
            self._seats[session_id] = None
            self._closings[session_id] = Closing(session_id, CLOSE_LIMIT, full.detail)
            self._news.set()
            return
        self._seats[session_id] = room
        room.audiences.setdefault(self, Audience(room.roster)).welcome(session_id)
        room.touch(session_id)
        room.revise(Version(revision))

    def move(self, session_id: str, cursor: bytes, drag: bytes) -> None:
        """Keeps the latest presence of a session. Raises `SessionUnknown`."""
        room = self._seat(session_id)
        if room is not None and room.roster.move(session_id, cursor, drag):
            room.touch(session_id)

    def resync(self, session_id: str) -> None:
        """Welcomes a session again. Raises `SessionUnknown`."""
        room = self._seat(session_id)
        if room is not None:
            room.audiences[self].welcome(session_id)
            self.wake(room)

    def leave(self, session_id: str) -> None:
        """Lets a session go, refused ones too. Raises `SessionUnknown`."""
        room = self._seat(session_id)
        del self._seats[session_id]
        self._rooms.session_ids.discard(session_id)
        self._closings.pop(session_id, None)
        if room is None:
            return
        room.roster.leave(session_id)
        audience = room.audiences[self]
        audience.dismiss(session_id)
        if not audience:
            del room.audiences[self]
            self._stale.pop(room, None)
        room.touch(session_id)
        self._rooms.tidy(room)

    def close(self, room: Room) -> None:
        """Closes its sockets in a room whose canvas is gone (PR18); they leave by themselves."""
        for session_id, seat in self._seats.items():
            if seat is room:
                self._closings[session_id] = Closing(session_id, CLOSE_DELETED, _DELETED)
        self._news.set()

    def end(self, failure: Failure | None = None) -> None:
        """Lets all its sessions go and ends what it is told, with a failure if there is one."""
        for session_id in list(self._seats):
            self.leave(session_id)
        self._ended = True
        self._failure = self._failure or failure
        self._news.set()

    def wake(self, room: Room) -> None:
        """Has a room looked at for news, soon."""
        self._stale[room] = None
        self._news.set()

    def beat(self) -> None:
        """Has all sockets hear a heartbeat, soon (PR11)."""
        self._beating = True
        self._news.set()

    async def tellings(self) -> AsyncIterator[Delivery | Closing]:
        """What to tell: at once after silence, then once in a tick (PR7).

        Ends with `end`, raising its failure.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._news.wait()
            if due > loop.time() and not self._ended:
                await asyncio.sleep(due - loop.time())
            if self._ended:
                break
            for telling in self.take():
                yield telling
            due = loop.time() + self._tick_seconds
        if self._failure is not None:
            raise self._failure

    def take(self) -> Iterator[Delivery | Closing]:
        """What there is to tell now, made while it is read: who reads slowly hears less."""
        self._news.clear()
        stale, self._stale = self._stale, {}
        closings, self._closings = self._closings, {}
        beating, self._beating = self._beating, False
        # All of these are welcomed below, if they were not before.
        seated = tuple(session_id for session_id, room in self._seats.items() if room is not None)
        for room in stale:
            audience = room.audiences.get(self)
            if audience is not None:
                yield from deliveries(audience.take(room.roster, room.revision), _now())
        if beating and seated:
            yield Delivery(seated, heartbeat(_now()))
        yield from closings.values()

    def _seat(self, session_id: str) -> Room | None:
        if session_id not in self._seats:
            raise SessionUnknown(session_id)
        return self._seats[session_id]


class PresenceService:
    """The rooms of this instance, and the gateways that are connected to it."""

    def __init__(self, *, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._rooms = Rooms()
        self._gateways: set[Gateway] = set()
        self._draining = False

    @contextmanager
    def connected(self) -> Iterator[Gateway]:
        """A gateway, whose sessions all leave at the end (PR9).

        Raises `Unavailable` while the instance is going away.
        """
        if self._draining:
            raise Unavailable(_GOING)
        gateway = Gateway(self._rooms, tick_seconds=self._tick_seconds)
        self._gateways.add(gateway)
        try:
            yield gateway
        finally:
            gateway.end()
            self._gateways.remove(gateway)

    def announce(self, place: Place, version: Version, *, leases_changed: bool) -> None:
        """Has a room hear of what was committed (PR10), if somebody is in it."""
        room = self._rooms.at(place)
        if room is not None:
            room.revise(version, leases_changed=leases_changed)

    def announce_deleted(self, place: Place) -> None:
        """Closes a room whose canvas was deleted (PR18), if somebody is in it."""
        self._rooms.close(place)

    async def beat(self, seconds: float) -> None:
        """Sends heartbeats, for ever."""
        while True:
            await asyncio.sleep(seconds)
            for gateway in self._gateways:
                gateway.beat()

    async def end_when(self, draining: asyncio.Event) -> None:
        """Waits until the instance is going away and sends its gateways elsewhere (PR17)."""
        await draining.wait()
        self._draining = True
        for gateway in list(self._gateways):
            gateway.end(Unavailable(_GOING))


_DELETED = "The canvas was deleted."
_GOING = "This instance of presence is going away; connect again."


def _now() -> str:
    return rfc3339(datetime.now(UTC))
