"""The rooms of this instance, the gateways that are connected to it, and the other instances."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from valkey.asyncio import Valkey

from servicekit.errors import Unavailable
from servicekit.ids import new_id
from services.presence.domain.rooms import Announcement, Place, Rooms
from services.presence.gateways import CLOSE_LOST, Gateway, Seats
from services.presence.leases import LEASE_SECONDS, Leases
from services.presence.numbers import LocalNumbers, SharedNumbers
from services.presence.relay import Relay


class PresenceService:
    """The rooms of this instance: alone, or with those of others that know the same Valkey."""

    def __init__(
        self,
        *,
        tick_seconds: float,
        valkey: Valkey | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._tick_seconds = tick_seconds
        self._gateways: set[Gateway] = set()
        self._draining = False
        self._relay: Relay | None = None
        self._numbers: SharedNumbers | None = None
        if valkey is None:
            self._seats = Seats(Rooms(), LocalNumbers(), self._end_room)
            return
        instance_id = new_id("pi")
        leases = Leases(valkey, instance_id, lease_seconds=lease_seconds)
        self._relay = Relay(
            valkey,
            leases,
            instance_id,
            tick_seconds=tick_seconds,
            announced=self._announce_here,
            ended=self._end_room,
            lost=self._lose,
        )
        self._numbers = SharedNumbers(leases, self._relay.reached)
        rooms = Rooms(self._relay.opened, self._relay.closed)
        self._seats = Seats(rooms, self._numbers, self._end_room)

    @contextmanager
    def connected(self) -> Iterator[Gateway]:
        """A gateway, whose sessions all leave at the end (PR9).

        Raises `Unavailable` while the instance is going away.
        """
        if self._draining:
            raise Unavailable(_GOING)
        gateway = Gateway(self._seats, tick_seconds=self._tick_seconds)
        self._gateways.add(gateway)
        try:
            yield gateway
        finally:
            gateway.end()
            self._gateways.remove(gateway)

    async def announce(self, announcements: Sequence[Announcement]) -> None:
        """Has rooms hear of what was committed (PR10, PR18), at all instances."""
        for each in announcements:
            self._announce_here(each)
        if self._relay is not None:
            # Who misses it finds it by asking for the sync status.
            with suppress(Unavailable):
                await self._relay.announce(announcements)

    async def beat(self, seconds: float) -> None:
        """Sends heartbeats, for ever."""
        while True:
            await asyncio.sleep(seconds)
            for gateway in self._gateways:
                gateway.beat()

    async def be_one_of_several(self) -> None:
        """Keeps up with the other instances, for ever, if there is a Valkey to do it by."""
        if self._relay is None or self._numbers is None:
            return
        async with asyncio.TaskGroup() as tasks:
            for loop in (
                self._relay.listen(),
                self._relay.speak(),
                self._relay.renew(),
                self._numbers.serve(),
            ):
                tasks.create_task(loop)

    async def end_when(self, draining: asyncio.Event) -> None:
        """Waits until the instance is going away and sends its gateways elsewhere (PR17)."""
        await draining.wait()
        self._draining = True
        if self._relay is not None and self._numbers is not None:
            self._relay.fall_silent()
            self._numbers.fall_silent()
        for gateway in list(self._gateways):
            gateway.end(Unavailable(_GOING))

    def _announce_here(self, announcement: Announcement) -> None:
        room = self._seats.rooms.at(announcement.place)
        if room is None:
            return
        ahead = announcement.incarnation - room.incarnation if announcement.incarnation else 0
        if ahead > 0 or (ahead == 0 and announcement.deleted):
            self._end_room(announcement.place)
        elif ahead == 0:
            room.revise(announcement.version, leases_changed=announcement.leases_changed)

    def _end_room(self, place: Place) -> None:
        room = self._seats.rooms.forget(place)
        if room is not None:
            for gateway in self._gateways:
                gateway.close_room(room)

    def _lose(self, session_id: str) -> None:
        seat = self._seats.by_id.get(session_id)
        if seat is not None:
            seat.gateway.close(session_id, CLOSE_LOST, _LOST)


_GOING = "This instance of presence is going away; connect again."
_LOST = "The number of this window is another's now; connect again."
