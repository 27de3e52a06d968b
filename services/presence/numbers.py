"""Gives sessions their numbers: alone, or so that no two instances give the same."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from servicekit.errors import Unavailable
from servicekit.telemetry import logger
from services.presence.domain.rooms import Room
from services.presence.gateways import Seat
from services.presence.leases import Lease, Leases

# Releases that are still to be told; one that is forgotten ends with its lease.
MAX_RELEASES = 10_000
BATCH = 500


class LocalNumbers:
    """Numbers of rooms that no other instance knows of."""

    def allot(self, seat: Seat) -> None:
        """Gives a seat the lowest number that is free here, or refuses it."""
        seat.gateway.settle(seat, seat.room.roster.free_number(seat.wanted))

    def release(self, _seat: Seat) -> None:
        """The number is free as soon as nobody in the room has it."""


class SharedNumbers:
    """Numbers that are leased from Valkey, many at once; while it is away, as if alone.

    `reachable` waits until the other instances hear of a room. Raises `Unavailable`.
    """

    def __init__(self, leases: Leases, reachable: Callable[[Room], Awaitable[None]]) -> None:
        self._leases = leases
        self._reachable = reachable
        self._alone = LocalNumbers()
        self._wanting: deque[Seat] = deque()
        self._releasing: deque[Lease] = deque(maxlen=MAX_RELEASES)
        self._news = asyncio.Event()
        self._is_quiet = False

    def allot(self, seat: Seat) -> None:
        """Has a seat settled soon."""
        self._wanting.append(seat)
        self._news.set()

    def release(self, seat: Seat) -> None:
        """Has the lease of a seat's number ended soon."""
        if self._is_quiet:
            return
        self._releasing.append(_lease(seat))
        self._news.set()

    def fall_silent(self) -> None:
        """Ends no leases any more: the sessions of this instance go to others with them."""
        self._is_quiet = True

    async def serve(self) -> None:
        """Settles seats, for ever; those that come meanwhile are settled together."""
        log = logger("presence.numbers")
        while True:
            await self._news.wait()
            self._news.clear()
            while self._releasing or self._wanting:
                released = [self._releasing.popleft() for _ in range(len(self._releasing))]
                seats = [self._wanting.popleft() for _ in range(min(BATCH, len(self._wanting)))]
                try:
                    await self._settle(released, seats)
                except Unavailable as failure:
                    log.warning("numbers are given alone", why=failure.detail, seats=len(seats))
                    for seat in seats:
                        if not seat.number:
                            self._alone.allot(seat)

    async def _settle(self, released: Sequence[Lease], seats: Sequence[Seat]) -> None:
        # In this order: what is free again is there to be taken.
        await self._leases.release(released)
        rooms = list({seat.room for seat in seats})
        reached = await asyncio.gather(*map(self._reachable, rooms), return_exceptions=True)
        for failure in reached:
            if isinstance(failure, BaseException) and not isinstance(failure, Unavailable):
                raise failure
        away = {room for room, failure in zip(rooms, reached, strict=True) if failure is not None}
        for seat in seats:
            if seat.room in away:
                self._alone.allot(seat)
        # Of a session that came twice, over a stream and the one after it, the later seat.
        settled = {seat.session_id: seat for seat in seats if seat.room not in away}
        numbers = await self._leases.take([_lease(seat) for seat in settled.values()])
        for seat, number in zip(settled.values(), numbers, strict=True):
            if not seat.gateway.settle(seat, number) and number is not None:
                seat.number = number
                self.release(seat)


def _lease(seat: Seat) -> Lease:
    room = seat.room
    return Lease(room.place, room.incarnation, seat.session_id, seat.number or seat.wanted)
