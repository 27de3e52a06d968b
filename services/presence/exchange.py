"""What instances say to one another of the rooms that they have, and what they make of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gesso.presence.v1 import presence_pb2

from services.presence.domain.rooms import Announcement, Place, Room
from services.presence.leases import RENEWAL_SECONDS
from services.presence.messages import (
    announcement_from_proto,
    peer_from_proto,
    proto_from_announcement,
    protos_from_peers,
)

# Whom an instance had is gone if it says nothing of a room for three renewals: before the lease
# of a number ends, so that nobody sees two with the same.
SILENCE_SECONDS = 3 * RENEWAL_SECONDS
# Farewells that could not be said; who misses one finds the silence.
MAX_FAREWELLS = 10_000


class Line:
    """What is known of a room at the other instances, and whether they can be heard."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.is_heard = False
        self.asks = False
        # When each instance that has the room spoke last.
        self.spoke: dict[str, float] = {}


class Exchange:
    """The other instances, as one who speaks for all their peers and hears of those here.

    `woken` is called when there is something to say, `announced` with what another has heard of,
    `ended` with the place of a room whose canvas another has a later one of (PR18). Times are
    seconds of a clock that does not run backwards.
    """

    def __init__(
        self,
        instance_id: str,
        *,
        woken: Callable[[], None],
        announced: Callable[[Announcement], None],
        ended: Callable[[Place], None],
    ) -> None:
        self.lines: dict[Place, Line] = {}
        self._instance_id = instance_id
        self._woken = woken
        self._announced = announced
        self._ended = ended
        self._stale: dict[Room, None] = {}
        self._farewells: dict[Place, bytes] = {}

    def opened(self, room: Room) -> None:
        """Speaks of a room from now on, as soon as others are heard in it."""
        self.lines[room.place] = Line(room)
        room.listen(self)

    def closed(self, room: Room) -> None:
        """Says that nobody here is in a room any more."""
        line = self.lines.pop(room.place)
        room.ignore(self)
        if line.spoke:
            self._farewells[room.place] = self._said(
                anew=True, gone=True, incarnation=room.incarnation
            )
            self._woken()

    def wake(self, room: Room) -> None:
        """Has the others told of a room, soon."""
        self._stale[room] = None
        self._woken()

    def heard(self, place: Place) -> Line | None:
        """From now on what others say of a room is heard: they are asked whom they have."""
        line = self.lines.get(place)
        if line is not None:
            line.is_heard = True
            line.asks = True
            line.room.renew(self)
        return line

    def unheard(self) -> None:
        """Nothing of what others say is heard any more."""
        for line in self.lines.values():
            line.is_heard = False
            # All of it will be told: what changes until then need not be kept.
            line.room.renew(self)

    def renew(self) -> None:
        """Has everybody told everything once more, where another has the room."""
        for line in self.lines.values():
            if line.spoke:
                line.room.renew(self)

    def say_again(self, said: Mapping[Place, bytes]) -> None:
        """Has what was said told once more: nobody knows whether it was heard."""
        for place, message in said.items():
            line = self.lines.get(place)
            if line is not None:
                line.asks = True
                line.room.renew(self)
            elif len(self._farewells) < MAX_FAREWELLS:
                self._farewells.setdefault(place, message)
                self._woken()

    def say(self) -> Iterator[tuple[Place, bytes]]:
        """What there is to say now, which counts as said."""
        farewells, self._farewells = self._farewells, {}
        stale, self._stale = self._stale, {}
        yield from farewells.items()
        for room in stale:
            line = self.lines.get(room.place)
            if line is None or line.room is not room or not line.is_heard:
                # All of it is told once it is heard.
                continue
            news = room.take(self)
            asks, line.asks = line.asks, False
            if news is not None and (asks or line.spoke):
                yield (
                    room.place,
                    self._said(
                        anew=news.anew,
                        asks=asks,
                        left_session_ids=news.left,
                        peers=protos_from_peers(news.changed),
                        revision=room.revision if news.anew else 0,
                        incarnation=room.incarnation,
                    ),
                )

    def committed(self, announcements: Iterable[Announcement]) -> Iterator[tuple[Place, bytes]]:
        """What there is to say of commits, of each room together."""
        by_place: dict[Place, list[presence_pb2.Invalidation]] = {}
        for each in announcements:
            by_place.setdefault(each.place, []).append(proto_from_announcement(each))
        for place, some in by_place.items():
            yield place, self._said(invalidations=some)

    def take(self, place: Place, said: bytes, now: float) -> None:
        """Takes what an instance has said of a room that is here. Raises `DecodeError`."""
        news = presence_pb2.RoomNews.FromString(said)
        if news.instance_id == self._instance_id:
            return
        for invalidation in news.invalidations:
            self._announced(announcement_from_proto(invalidation))
        line = self.lines.get(place)
        if line is None or news.invalidations:
            return
        if news.incarnation == line.room.incarnation:
            self._take(line, news, now)
        elif news.incarnation > line.room.incarnation:
            self._ended(place)
        elif not news.gone:
            # They have not heard that their canvas is gone.
            line.asks = True
            line.room.renew(self)

    def forget_silent(self, now: float) -> None:
        """Takes the peers of instances for gone that have said nothing of a room for long."""
        for line in self.lines.values():
            for instance_id, at in list(line.spoke.items()):
                if now - at > SILENCE_SECONDS:
                    del line.spoke[instance_id]
                    for peer in line.room.roster.spoken_for_by(instance_id):
                        line.room.drop(peer.session_id, self, instance_id)

    def _take(self, line: Line, news: presence_pb2.RoomNews, now: float) -> None:
        room, instance_id = line.room, news.instance_id
        left = list(news.left_session_ids)
        if news.anew:
            came = {peer.session_id for peer in news.peers}
            known = room.roster.spoken_for_by(instance_id)
            left += [peer.session_id for peer in known if peer.session_id not in came]
        if news.gone:
            line.spoke.pop(instance_id, None)
        elif news.anew or news.peers or instance_id in line.spoke:
            if news.asks or instance_id not in line.spoke:
                room.renew(self)
            line.spoke[instance_id] = now
        for peer in news.peers:
            room.put(peer_from_proto(peer), self, instance_id)
        for session_id in left:
            room.drop(session_id, self, instance_id)
        if news.revision:
            room.catch_up(news.revision)

    def _said(self, **members: Any) -> bytes:
        message = presence_pb2.RoomNews(instance_id=self._instance_id, **members)
        return message.SerializeToString()
