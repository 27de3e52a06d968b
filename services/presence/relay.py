"""Tells other instances of the rooms that they have too, over Valkey, and hears them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from gesso.presence.v1 import presence_pb2
from google.protobuf.message import DecodeError
from valkey.asyncio import Valkey
from valkey.asyncio.client import PubSub

from servicekit.errors import Unavailable
from servicekit.pauses import growing
from servicekit.telemetry import logger
from servicekit.valkey import translated
from services.presence.domain.rooms import Announcement, Place, Room
from services.presence.leases import RENEWAL_SECONDS, Lease, Leases
from services.presence.messages import (
    announcement_from_proto,
    peer_from_proto,
    proto_from_announcement,
    protos_from_peers,
)

# Whom an instance had is gone if it says nothing of a room for three renewals: before the lease
# of a number ends, so that nobody sees two with the same.
SILENCE_SECONDS = 3 * RENEWAL_SECONDS
PROBE_SECONDS = 5.0
REACH_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
# Messages that go to Valkey together.
BATCH = 100

# A subscription that is always there, so that the connection is.
_STANDING = "gesso:presence"


class _Line:
    """What is known of a room at the other instances."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.is_heard = asyncio.Event()
        self.asks = False
        # When each instance that has the room spoke last.
        self.spoke: dict[str, float] = {}


class Relay:
    """The other instances: one who speaks for all their peers, and hears of those here."""

    def __init__(
        self,
        client: Valkey,
        leases: Leases,
        instance_id: str,
        *,
        tick_seconds: float,
        announced: Callable[[Announcement], None],
        lost: Callable[[str], None],
    ) -> None:
        self._client = client
        self._leases = leases
        self._instance_id = instance_id
        self._tick_seconds = tick_seconds
        self._announced = announced
        self._lost = lost
        self._lines: dict[str, _Line] = {}
        self._farewells: dict[str, bytes] = {}
        self._stale: dict[Room, None] = {}
        self._news = asyncio.Event()
        self._lines_changed = asyncio.Event()
        self._is_up = False
        self._has_tried = asyncio.Event()
        self._is_quiet = False
        self._log = logger("presence.relay")

    def opened(self, room: Room) -> None:
        """Speaks of a room from now on."""
        self._lines[_channel(room.place)] = _Line(room)
        self._lines_changed.set()
        room.listen(self)

    def closed(self, room: Room) -> None:
        """Says that nobody here is in a room any more."""
        line = self._lines.pop(_channel(room.place))
        self._lines_changed.set()
        room.ignore(self)
        if line.spoke:
            self._farewells[_channel(room.place)] = self._news_of(
                anew=True, gone=True
            ).SerializeToString()
            self._news.set()

    def wake(self, room: Room) -> None:
        """Has the others told of a room, soon."""
        self._stale[room] = None
        self._news.set()

    def fall_silent(self) -> None:
        """Says nothing more: the sessions of this instance go to others, as they are."""
        self._is_quiet = True

    async def reached(self, room: Room) -> None:
        """Waits until others hear of a room and it hears of them. Raises `Unavailable`."""
        line = self._lines.get(_channel(room.place))
        if line is None or line.room is not room or line.is_heard.is_set():
            return
        await self._has_tried.wait()
        if not self._is_up:
            raise Unavailable("Valkey is away.")
        try:
            async with asyncio.timeout(REACH_SECONDS):
                await line.is_heard.wait()
        except TimeoutError:
            raise Unavailable("Valkey does not answer.") from None

    async def announce(self, announcements: Iterable[Announcement]) -> None:
        """Tells the others what was committed. Raises `Unavailable`."""
        by_place: dict[Place, list[presence_pb2.Invalidation]] = {}
        for each in announcements:
            by_place.setdefault(each.place, []).append(proto_from_announcement(each))
        await self._publish(
            (_channel(place), self._news_of(invalidations=some).SerializeToString())
            for place, some in by_place.items()
        )

    async def speak(self) -> None:
        """Tells the others what happens here, for ever: at once, then once in a tick."""
        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            await self._news.wait()
            self._news.clear()
            stale, self._stale = self._stale, {}
            if self._is_quiet:
                continue
            try:
                await self._publish(self._messages(stale))
            except Unavailable as failure:
                self._log.warning("other instances were not told", why=failure.detail)
                for room in stale:
                    room.renew(self)
                await asyncio.sleep(next(pauses))
            else:
                pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(self._tick_seconds)

    async def listen(self) -> None:
        """Hears the others, for ever; a lost connection is made anew."""
        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                with translated():
                    async with self._client.pubsub() as pubsub:
                        await pubsub.subscribe(_STANDING)
                        await self._renew()
                        self._is_up = True
                        self._has_tried.set()
                        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                        await self._hear(pubsub)
            except Unavailable as failure:
                self._log.warning("other instances are not heard", why=failure.detail)
            finally:
                self._is_up = False
                self._has_tried.set()
                for line in self._lines.values():
                    line.is_heard.clear()
            await asyncio.sleep(next(pauses))

    async def renew(self) -> None:
        """Keeps what the others know of this instance, and forgets those that are silent."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            with suppress(Unavailable):
                await self._renew()
            for line in self._lines.values():
                self._forget_silent(line)
                if line.spoke:
                    line.room.renew(self)

    async def _renew(self) -> None:
        held = [
            Lease(line.room.place, peer.session_id, peer.number)
            for line in self._lines.values()
            for peer in line.room.here()
        ]
        for session_id in await self._leases.renew(held):
            self._lost(session_id)

    async def _hear(self, pubsub: PubSub) -> None:
        """Takes what comes, while the rooms that are subscribed are those that there are."""
        self._lines_changed.set()
        following = asyncio.create_task(self._follow(pubsub))
        try:
            is_asked = False
            while not following.done():
                message = await pubsub.get_message(timeout=PROBE_SECONDS)
                if message is not None:
                    is_asked = False
                    self._take(message)
                elif is_asked:
                    raise Unavailable("Valkey does not answer.")
                else:
                    await pubsub.ping()
                    is_asked = True
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, pubsub: PubSub) -> None:
        subscribed: dict[str, _Line] = {}
        with translated():
            while True:
                await self._lines_changed.wait()
                self._lines_changed.clear()
                wanted = dict(self._lines)
                if gone := subscribed.keys() - wanted.keys():
                    await pubsub.unsubscribe(*gone)
                # Also for a new room of the same canvas, to hear when it is heard.
                new = [name for name, line in wanted.items() if subscribed.get(name) is not line]
                if new:
                    await pubsub.subscribe(*new)
                subscribed = wanted

    def _take(self, message: dict[str, object]) -> None:
        channel = message["channel"]
        if not isinstance(channel, bytes):
            return
        line = self._lines.get(channel.decode())
        if line is None:
            return
        if message["type"] == "subscribe":
            line.is_heard.set()
            line.asks = True
            line.room.renew(self)
        elif message["type"] == "message" and isinstance(message["data"], bytes):
            try:
                news = presence_pb2.RoomNews.FromString(message["data"])
            except DecodeError:
                self._log.warning("what another instance said is not understood")
                return
            if news.instance_id != self._instance_id:
                self._take_news(line, news)

    def _take_news(self, line: _Line, news: presence_pb2.RoomNews) -> None:
        room, instance_id = line.room, news.instance_id
        came = {peer.session_id for peer in news.peers}
        for peer in news.peers:
            room.put(peer_from_proto(peer), self, instance_id)
        left = list(news.left_session_ids)
        if news.anew:
            left += [
                peer.session_id
                for peer in room.roster.spoken_for_by(instance_id)
                if peer.session_id not in came
            ]
        for session_id in left:
            room.drop(session_id, self, instance_id)
        if news.revision:
            room.catch_up(news.revision)
        for invalidation in news.invalidations:
            self._announced(announcement_from_proto(invalidation))
        if news.gone:
            line.spoke.pop(instance_id, None)
        elif news.anew or instance_id in line.spoke:
            line.spoke[instance_id] = asyncio.get_running_loop().time()
        if news.asks:
            room.renew(self)

    def _forget_silent(self, line: _Line) -> None:
        now = asyncio.get_running_loop().time()
        for instance_id, at in list(line.spoke.items()):
            if now - at > SILENCE_SECONDS:
                del line.spoke[instance_id]
                for peer in line.room.roster.spoken_for_by(instance_id):
                    line.room.drop(peer.session_id, self, instance_id)

    def _messages(self, stale: Iterable[Room]) -> Iterator[tuple[str, bytes]]:
        farewells, self._farewells = self._farewells, {}
        yield from farewells.items()
        for room in stale:
            channel = _channel(room.place)
            line = self._lines.get(channel)
            if line is None or line.room is not room or not line.is_heard.is_set():
                # It is told all of it once it is heard.
                continue
            news = room.take(self)
            asks, line.asks = line.asks, False
            if news is None or not (asks or line.spoke):
                continue
            message = self._news_of(
                anew=news.anew,
                asks=asks,
                left_session_ids=news.left,
                peers=protos_from_peers(news.changed),
                revision=room.revision if news.anew else 0,
            )
            yield channel, message.SerializeToString()

    def _news_of(self, **members: Any) -> presence_pb2.RoomNews:
        return presence_pb2.RoomNews(instance_id=self._instance_id, **members)

    async def _publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        messages = iter(messages)
        with translated():
            while batch := list(islice(messages, BATCH)):
                async with self._client.pipeline(transaction=False) as pipeline:
                    for channel, message in batch:
                        pipeline.publish(channel, message)
                    await pipeline.execute()


def _channel(place: Place) -> str:
    return f"gesso:presence:room:{place.account_id}/{place.canvas_id}"
