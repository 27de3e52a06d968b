"""What gateways say of their sockets, and what they have to hear."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from servicekit.errors import Failure, Invalid
from services.presence.domain.audience import News
from services.presence.domain.failures import SessionIdReused, SessionUnknown
from services.presence.domain.frames import invalidations
from services.presence.domain.rooms import Place, Room, Rooms
from services.presence.domain.roster import MAX_PEERS, Peer

MAX_ID_LENGTH = 80
CLOSE_DELETED = 4404
CLOSE_LOST = 4409
CLOSE_LIMIT = 4429
# A message holds rooms until they are so large together.
MESSAGE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Closing:
    """The end of a socket: the WebSocket close code, and why, for people."""

    session_id: str
    code: int
    reason: str


@dataclass(frozen=True)
class Update:
    """What happened in a room that is at `revision`, and the frames for who is in it."""

    place: Place
    incarnation: int
    news: News
    revision: int
    frames: tuple[bytes, ...]

    def size_bytes(self) -> int:
        """What it takes in a message, about."""
        peers = sum(len(peer.cursor) + len(peer.drag) + 100 for peer in self.news.changed)
        return peers + sum(map(len, self.frames)) + 200


@dataclass(frozen=True)
class Telling:
    """What a gateway has to hear, in this order."""

    closings: tuple[Closing, ...] = ()
    updates: tuple[Update, ...] = ()
    heartbeat: bool = False


@dataclass(eq=False)
class Seat:
    """A session in a room: without a number until it has one, and for ever if it is refused."""

    session_id: str
    gateway: "Gateway"
    room: Room
    wanted: int
    term: int
    number: int = 0
    cursor: bytes = b"null"
    drag: bytes = b"null"


class Numbers(Protocol):
    """Who gives sessions their numbers."""

    def allot(self, seat: Seat) -> None:
        """Has a seat settled with a number, or refused, now or soon (PR2, PR3)."""

    def release(self, seat: Seat) -> None:
        """Takes back the number of a seat."""


class Seats:
    """The sessions of all gateways here, by their ids."""

    def __init__(
        self, rooms: Rooms, numbers: Numbers, end_room: Callable[[Place], None] = lambda _: None
    ) -> None:
        self.rooms = rooms
        self.numbers = numbers
        # Closes the sockets in a room whose canvas is gone.
        self.end_room = end_room
        self.by_id: dict[str, Seat] = {}


class Gateway:
    """The sockets of one gateway, and what it has still to be told.

    What waits is never more than the rooms that its sockets are in, however slow it is.
    """

    def __init__(self, seats: Seats, *, tick_seconds: float) -> None:
        self._seats = seats
        self._tick_seconds = tick_seconds
        self._own: dict[str, Seat] = {}
        self._seats_in: Counter[Room] = Counter()
        self._closings: dict[str, Closing] = {}
        self._stale: dict[Room, None] = {}
        self._beating = False
        self._news = asyncio.Event()
        self._ended = False
        self._failure: Failure | None = None

    @property
    def is_ended(self) -> bool:
        """Whether it is told nothing any more, and takes nothing."""
        return self._ended

    def join(
        self,
        session_id: str,
        place: Place,
        revision: int,
        *,
        number: int = 0,
        term: int = 0,
        incarnation: int = 0,
    ) -> None:
        """Takes a session in, with the number that it had if it is free.

        From another stream too, unless that one has the greater `term`. Raises `SessionIdReused`,
        and `Invalid` for what is no id.
        """
        if not (0 < len(session_id) <= MAX_ID_LENGTH and place.account_id and place.canvas_id):
            raise Invalid("A session has an id of 1 to 80 characters, an account and a canvas.")
        if session_id in self._own:
            raise SessionIdReused(session_id)
        rooms = self._seats.rooms
        known = rooms.at(place)
        if known is not None and known.incarnation < incarnation:
            self._seats.end_room(place)
        room = rooms.seat(place, incarnation)
        seat = self._own[session_id] = Seat(session_id, self, room, number, term)
        self._seats_in[room] += 1
        room.listen(self)
        if rooms.at(place) is not room:
            self.close(session_id, CLOSE_DELETED, _DELETED)
            return
        before = self._seats.by_id.get(session_id)
        if before is not None and before.term > term:
            return
        self._seats.by_id[session_id] = seat
        if before is not None and before.number and before.room is room:
            self.settle(seat, before.number)
            before.gateway.give_up(before)
        else:
            if before is not None:
                before.gateway.release(before)
            self._seats.numbers.allot(seat)
        room.catch_up(revision)

    def settle(self, seat: Seat, number: int | None) -> bool:
        """Gives a seat its number, or refuses it for want of one; whether the session is here."""
        if self._own.get(seat.session_id) is not seat:
            return False
        if number is None:
            self.close(seat.session_id, CLOSE_LIMIT, _FULL)
        else:
            seat.number = number
            seat.room.admit(_peer(seat), self)
        return True

    def move(self, session_id: str, cursor: bytes, drag: bytes) -> None:
        """Keeps the latest presence of a session. Raises `SessionUnknown`."""
        seat = self._seat(session_id)
        seat.cursor, seat.drag = cursor, drag
        if seat.number:
            seat.room.move(session_id, cursor, drag, self)

    def leave(self, session_id: str) -> None:
        """Lets a session go, refused ones too. Raises `SessionUnknown`."""
        self.release(self._seat(session_id))

    def release(self, seat: Seat) -> None:
        """Lets a seat go, and its number."""
        if self._seats.by_id.get(seat.session_id) is seat:
            del self._seats.by_id[seat.session_id]
        if seat.number:
            seat.room.drop(seat.session_id, self, self)
            self._seats.numbers.release(seat)
        self.give_up(seat)

    def give_up(self, seat: Seat) -> None:
        """Knows nothing more of a seat, whose number another has."""
        del self._own[seat.session_id]
        self._closings.pop(seat.session_id, None)
        self._seats_in[seat.room] -= 1
        if self._seats_in[seat.room] == 0:
            del self._seats_in[seat.room]
            seat.room.ignore(self)
            self._stale.pop(seat.room, None)
        self._seats.rooms.unseat(seat.room)

    def close(self, session_id: str, code: int, reason: str) -> None:
        """Has a socket closed; its session leaves by itself."""
        self._closings[session_id] = Closing(session_id, code, reason)
        self._news.set()

    def close_room(self, room: Room) -> None:
        """Closes its sockets in a room whose canvas is gone (PR18)."""
        for session_id, seat in self._own.items():
            if seat.room is room:
                self.close(session_id, CLOSE_DELETED, _DELETED)

    def end(self, failure: Failure | None = None) -> None:
        """Lets all its sessions go and ends what it is told, with a failure if there is one."""
        for seat in list(self._own.values()):
            self.release(seat)
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

    async def tellings(self) -> AsyncIterator[Telling]:
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

    def take(self) -> Iterator[Telling]:
        """What there is to tell now, made while it is read: who reads slowly hears less."""
        self._news.clear()
        stale, self._stale = self._stale, {}
        closings, self._closings = self._closings, {}
        beating, self._beating = self._beating, False
        if closings:
            yield Telling(closings=tuple(closings.values()))
        updates: list[Update] = []
        size = 0
        for room in stale:
            news = room.take(self)
            # One that was forgotten would be taken for the one that has its place.
            if news is None or self._seats.rooms.at(room.place) is not room:
                continue
            frames = tuple(invalidations(news, room.revision))
            updates.append(Update(room.place, room.incarnation, news, room.revision, frames))
            size += updates[-1].size_bytes()
            if size > MESSAGE_BYTES:
                yield Telling(updates=tuple(updates))
                updates, size = [], 0
        if updates or beating:
            yield Telling(updates=tuple(updates), heartbeat=beating)

    def _seat(self, session_id: str) -> Seat:
        seat = self._own.get(session_id)
        if seat is None:
            raise SessionUnknown(session_id)
        return seat


def _peer(seat: Seat) -> Peer:
    return Peer(seat.session_id, seat.number, seat.cursor, seat.drag, seat.term)


_DELETED = "The canvas was deleted."
_FULL = f"At most {MAX_PEERS} windows can have a canvas open."
