"""Carries what instances say to one another over Valkey, and keeps the leases of numbers."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from google.protobuf.message import DecodeError
from valkey.asyncio import Valkey
from valkey.asyncio.client import PubSub

from servicekit.errors import Unavailable
from servicekit.pauses import growing
from servicekit.telemetry import logger
from servicekit.valkey import translated
from services.presence.domain.rooms import Announcement, Place, Room
from services.presence.exchange import Exchange, Line
from services.presence.leases import RENEWAL_SECONDS, Lease, Leases

PROBE_SECONDS = 5.0
REACH_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
# Messages that go to Valkey together.
BATCH = 100

# A subscription that is always there, so that the connection is.
_STANDING = "gesso:presence"
_ROOM = "gesso:presence:room:"


class Relay:
    """The way to the other instances.

    `announced` is called with what another instance has heard of, `ended` with a canvas that
    another has a later one of, `lost` with sessions whose numbers went to others.
    """

    def __init__(
        self,
        client: Valkey,
        leases: Leases,
        instance_id: str,
        *,
        tick_seconds: float,
        announced: Callable[[Announcement], None],
        ended: Callable[[Place], None],
        lost: Callable[[str], None],
    ) -> None:
        self._client = client
        self._leases = leases
        self._tick_seconds = tick_seconds
        self._lost = lost
        self._news = asyncio.Event()
        self._exchange = Exchange(
            instance_id, woken=self._news.set, announced=announced, ended=ended
        )
        self._rooms_changed = asyncio.Event()
        self._reached: dict[Line, asyncio.Event] = {}
        self._is_up = False
        self._has_tried = asyncio.Event()
        self._is_quiet = False
        self._log = logger("presence.relay")

    def opened(self, room: Room) -> None:
        """Speaks of a room from now on."""
        self._exchange.opened(room)
        self._rooms_changed.set()

    def closed(self, room: Room) -> None:
        """Says that nobody here is in a room any more."""
        line = self._exchange.lines[room.place]
        self._exchange.closed(room)
        self._rooms_changed.set()
        if line in self._reached:
            # Nobody waits for it any more.
            self._reached[line].set()

    def fall_silent(self) -> None:
        """Says nothing more: the sessions of this instance go to others, as they are."""
        self._is_quiet = True

    async def reached(self, room: Room) -> None:
        """Waits until others hear of a room and it hears of them. Raises `Unavailable`."""
        await self._has_tried.wait()
        line = self._exchange.lines.get(room.place)
        if line is None or line.room is not room or line.is_heard:
            return
        if not self._is_up:
            raise Unavailable("Valkey is away.")
        try:
            async with asyncio.timeout(REACH_SECONDS):
                await self._reached.setdefault(line, asyncio.Event()).wait()
        except TimeoutError:
            raise Unavailable("Valkey does not answer.") from None
        finally:
            self._reached.pop(line, None)

    async def announce(self, announcements: Iterable[Announcement]) -> None:
        """Tells the others what was committed. Raises `Unavailable`."""
        await self._publish(self._exchange.committed(announcements))

    async def speak(self) -> None:
        """Tells the others what happens here, for ever: at once, then once in a tick."""
        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            await self._news.wait()
            self._news.clear()
            said = {} if self._is_quiet else dict(self._exchange.say())
            try:
                await self._publish(said.items())
            except Unavailable as failure:
                self._log.warning("other instances were not told", why=failure.detail)
                self._exchange.say_again(said)
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
                        await self._renew_leases()
                        self._is_up = True
                        self._has_tried.set()
                        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                        await self._hear(pubsub)
            except Unavailable as failure:
                self._log.warning("other instances are not heard", why=failure.detail)
            finally:
                self._is_up = False
                self._has_tried.set()
                self._exchange.unheard()
            await asyncio.sleep(next(pauses))

    async def renew(self) -> None:
        """Keeps what the others know of this instance, and forgets those that are silent."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            with suppress(Unavailable):
                await self._renew_leases()
            self._exchange.forget_silent(asyncio.get_running_loop().time())
            self._exchange.renew()

    async def _renew_leases(self) -> None:
        held = [
            Lease(line.room.place, line.room.incarnation, peer.session_id, peer.number)
            for line in self._exchange.lines.values()
            for peer in line.room.here()
        ]
        for session_id in await self._leases.renew(held):
            self._lost(session_id)
        # Those that left meanwhile would hold their numbers for another minute.
        here = {
            peer.session_id for line in self._exchange.lines.values() for peer in line.room.here()
        }
        await self._leases.release([each for each in held if each.session_id not in here])

    async def _hear(self, pubsub: PubSub) -> None:
        """Takes what comes, while the rooms that are subscribed are those that there are."""
        self._rooms_changed.set()
        following = asyncio.create_task(self._follow(pubsub))
        try:
            is_asked = False
            while not following.done():
                with translated():
                    message = await pubsub.get_message(timeout=PROBE_SECONDS)
                if message is not None:
                    is_asked = False
                    self._take(message)
                elif is_asked:
                    raise Unavailable("Valkey does not answer.")
                else:
                    with translated():
                        await pubsub.ping()
                    is_asked = True
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, pubsub: PubSub) -> None:
        subscribed: dict[Place, Line] = {}
        while True:
            await self._rooms_changed.wait()
            self._rooms_changed.clear()
            wanted = dict(self._exchange.lines)
            gone = subscribed.keys() - wanted.keys()
            # Also for a new room of the same canvas, to hear when it is heard.
            new = [place for place, line in wanted.items() if subscribed.get(place) is not line]
            with translated():
                if gone:
                    await pubsub.unsubscribe(*map(_channel, gone))
                if new:
                    await pubsub.subscribe(*map(_channel, new))
            subscribed = wanted

    def _take(self, message: dict[str, object]) -> None:
        place = _place(message["channel"])
        if place is None:
            return
        if message["type"] == "subscribe":
            line = self._exchange.heard(place)
            if line in self._reached:
                self._reached[line].set()
        elif message["type"] == "message" and isinstance(message["data"], bytes):
            try:
                now = asyncio.get_running_loop().time()
                self._exchange.take(place, message["data"], now)
            except DecodeError:
                self._log.warning("what another instance said is not understood")

    async def _publish(self, messages: Iterable[tuple[Place, bytes]]) -> None:
        messages = iter(messages)
        with translated():
            while batch := list(islice(messages, BATCH)):
                async with self._client.pipeline(transaction=False) as pipeline:
                    for place, message in batch:
                        pipeline.publish(_channel(place), message)
                    await pipeline.execute()


def _channel(place: Place) -> str:
    return f"{_ROOM}{place.account_id}/{place.canvas_id}"


def _place(channel: object) -> Place | None:
    """The room of a channel, None if it is that of none."""
    if not isinstance(channel, bytes):
        return None
    name = channel.decode()
    if not name.startswith(_ROOM):
        return None
    account_id, _, canvas_id = name.removeprefix(_ROOM).partition("/")
    return Place(account_id, canvas_id)
