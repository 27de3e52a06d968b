"""The gateway's end of presence: its windows, and one stream by which the service knows of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol
from weakref import WeakSet

from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub

from gateway.mailbox import Closed, Mailbox
from gateway.pace import BURST, RATE_PER_SECOND, AbuseWatch, Ticks, TokenBucket
from gateway.rooms.frames import heartbeat
from gateway.rooms.peers import NOWHERE, Peer, Presence
from gateway.rooms.room import Place, Room
from servicekit.background import background
from servicekit.client import Client, held
from servicekit.identity import Behalf
from servicekit.ids import new_id
from servicekit.telemetry import logger
from servicekit.times import rfc3339

CLOSE_DELETED = 4404
CLOSE_LIMIT = 4429
CLOSE_LATER = 1013
TICK_SECONDS = 0.008
MAX_SESSIONS = 500
# A window that has no number by then is sent away.
WELCOME_SECONDS = 10.0
# Whom a lost stream told of counts as gone if nothing is heard of them for so long.
FORGET_SECONDS = 5.0

_DELETED = Closed(CLOSE_DELETED, "The canvas was deleted.")


class Line(Protocol):
    """The way to a window."""

    def send(self, message: bytes) -> None:
        """Sends a message that tells of peers, whatever else waits."""

    def pass_on(self, frame: bytes) -> bool:
        """Sends a text if the window takes it now; whether it did."""

    def begun(self) -> None:
        """A welcome has been sent."""


class Session:
    """A window's socket, from `PresenceLink.session`.

    `revision` is the canvas's that was read last, which the next welcome tells at least.
    """

    def __init__(
        self,
        room: Room,
        revision: int,
        say: Callable[["Session"], None],
        line: Line,
    ) -> None:
        self.session_id = new_id("ws")
        self.room = room
        self.revision = revision
        self.number = 0
        self.presence = NOWHERE
        self.ended = False
        self._say = say
        self._line = line
        self._mailbox = Mailbox(lambda: room.welcome(self.session_id), line.pass_on)
        # Called often and in great numbers.
        self.show = line.send
        self.hear = self._mailbox.put
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._bucket = TokenBucket(per_second=RATE_PER_SECOND, burst=BURST, now=now)
        self._watch = AbuseWatch(now)
        self._moving: asyncio.TimerHandle | None = None
        self._waiting = self._loop.call_later(WELCOME_SECONDS, self._give_up)

    def move(self, cursor: bytes, drag: bytes) -> None:
        """Shows the others where the window's cursor is and what it drags, both as JSON.

        Never waits. What is over the rate is told as soon as the rate allows, the latest only
        (PR13); lasting abuse ends the session (PR14).
        """
        if self.ended:
            return
        if self._watch.count(self._loop.time()):
            self.end(Closed(CLOSE_LIMIT, "Too many frames for too long."))
            return
        if (cursor, drag) == self.presence:
            return
        self.presence = (cursor, drag)
        if self._moving is None:
            self._move()

    def begin(self, welcome: bytes) -> None:
        """Sends the message that tells everything."""
        self._mailbox.begin()
        self._line.send(welcome)
        self._line.begun()

    def pause(self) -> None:
        """What was sent is still on its way: the window is told nothing of its peers."""
        if not self.ended:
            self.room.pause(self.session_id)

    def resume(self) -> None:
        """What was sent has gone: the window is told what it missed."""
        if not self.ended:
            self.room.resume(self.session_id)

    async def events(self) -> AsyncIterator[bytes | Closed]:
        """What the line did not take, then at most one `Closed`, after which there is no more.

        A reader that is too slow for it gets a welcome that replaces what it missed.
        """
        while True:
            event = await self._mailbox.take()
            yield event
            if isinstance(event, Closed):
                return

    def catch_up(self, revision: int) -> None:
        """Takes a revision that was read; the room hears of it if it is news."""
        self.revision = revision
        if self.number:
            self.room.catch_up(revision)

    def admit(self, number: int) -> None:
        """Takes the number that the service gave it; it is welcomed if that is another one."""
        self._waiting.cancel()
        if number != self.number:
            self.number = number
            self.room.admit(self.session_id, number, self.presence)

    def end(self, closed: Closed) -> None:
        """Ends it here and at the service."""
        if self.ended:
            return
        self.ended = True
        self._waiting.cancel()
        if self._moving is not None:
            self._moving.cancel()
        self.room.leave(self.session_id)
        self._mailbox.close(closed)
        self._say(self)

    def _move(self) -> None:
        now = self._loop.time()
        if not self._bucket.take(now):
            self._moving = self._loop.call_later(self._bucket.wait(now), self._move)
            return
        self._moving = None
        self.room.move(self.session_id, self.presence)
        if self.room.shared:
            self._say(self)

    def _give_up(self) -> None:
        self.end(Closed(CLOSE_LATER, "Presence does not answer; connect again."))


class PresenceLink:
    """The windows of this gateway, and the stream by which the service knows of them."""

    def __init__(self) -> None:
        self._rooms: dict[Place, Room] = {}
        self._sessions: dict[str, Session] = {}
        self._ticks = Ticks(asyncio.get_running_loop().time())
        self._term = 0
        self._stream = self.renewed()

    @asynccontextmanager
    async def session(
        self,
        account_id: str,
        canvas_id: str,
        revision: int,
        *,
        line: Line,
        incarnation: int = 0,
    ) -> AsyncIterator[Session]:
        """A socket of an account on a canvas that is its own, until the block is left.

        Of canvases that have the id one after another, of ever greater `incarnation`, only
        sessions on the last one do not end. What the line takes is not among the session's
        events.
        """
        place = Place(account_id, canvas_id)
        known = self._rooms.get(place)
        if known is not None and known.incarnation < incarnation:
            for session_id in known.window_ids():
                self._sessions[session_id].end(_DELETED)
            known = None
        if known is None:
            known = self._rooms[place] = Room(place, incarnation, self._ticks)
        is_last = known.incarnation == incarnation
        room = known if is_last else Room(place, incarnation, self._ticks)
        session = Session(room, revision, self._say, line)
        self._sessions[session.session_id] = session
        room.enter(session.session_id, session)
        if is_last:
            self._say(session)
        else:
            session.end(_DELETED)
        try:
            yield session
        finally:
            session.end(Closed(1000, "The window left."))
            del self._sessions[session.session_id]

    def renewed(self) -> "Stream":
        """A stream in place of the one before: it has the service told everything anew."""
        self._term += 1
        self._stream = Stream(self._sessions, self._rooms, self._term)
        return self._stream

    def doubted(self) -> Callable[[], None]:
        """What takes those that are known now at other gateways for gone.

        Except for those of whom something is heard until it is called.
        """
        known = [(room, room.elsewhere()) for room in self._rooms.values()]

        def forget() -> None:
            for room, peers in known:
                room.forget(peers)

        return forget

    async def keep(self, client: Client) -> None:
        """Holds the stream, for ever: a lost one is made anew, and everybody joins again."""
        log = logger("gateway.presence")
        connect = PresenceServiceStub(client.channel).Connect

        async def one() -> None:
            stream = self.renewed()
            try:
                async with client.exchange(connect, stream.requests(), Behalf()) as responses:
                    async for response in responses:
                        stream.receive(response)
            finally:
                stream.end()
                asyncio.get_running_loop().call_later(FORGET_SECONDS, self.doubted())

        await held(
            one,
            lost=lambda why: log.warning("presence is away", why=why, sessions=len(self._sessions)),
        )

    def _say(self, session: Session) -> None:
        room = session.room
        if not room and self._rooms.get(room.place) is room:
            del self._rooms[room.place]
        self._stream.say(session)


@asynccontextmanager
async def linked(client: Client) -> AsyncIterator[PresenceLink]:
    """A link to the presence service, kept inside the block."""
    link = PresenceLink()
    async with background(link.keep(client)):
        yield link


class Stream:
    """One call to the service: tells it of sessions what it does not know yet.

    `term` is greater than that of every stream before.
    """

    def __init__(
        self, sessions: Mapping[str, Session], rooms: Mapping[Place, Room], term: int
    ) -> None:
        self._term = term
        self._sessions = sessions
        self._rooms = rooms
        # The presence that the service has been told of those that have joined.
        self._told: dict[Session, Presence] = {}
        # Those of which it has told everything over this stream.
        self._known: WeakSet[Room] = WeakSet()
        self._waiting = dict.fromkeys(sessions.values())
        self._news = asyncio.Event()
        self._news.set()
        self._ended = False

    def say(self, session: Session) -> None:
        """Has the service told what it does not know of a session, soon."""
        self._waiting[session] = None
        self._news.set()

    def end(self) -> None:
        """Ends the requests."""
        self._ended = True
        self._news.set()

    async def requests(self) -> AsyncIterator[presence_pb2.ConnectRequest]:
        """What to tell the service, the latest of each session only.

        At once after silence, then once in a tick: a message costs more than what it says.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._ended:
            await self._news.wait()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            self._news.clear()
            while self._waiting and not self._ended:
                yield self.request()
            due = loop.time() + TICK_SECONDS

    def receive(self, response: presence_pb2.ConnectResponse) -> None:
        """Does what the service says."""
        for close in response.closes:
            session = self._sessions.get(close.session_id)
            if session is not None:
                session.end(Closed(close.code, close.reason))
        for update in response.rooms:
            room = self._rooms.get(Place(update.account_id, update.canvas_id))
            # One that was left and entered again may hear of its past, or of a canvas before it.
            if room is None or room.incarnation != update.incarnation:
                continue
            if update.anew or room in self._known:
                self._known.add(room)
                self._update(room, update)
        if response.heartbeat:
            frame = heartbeat(rfc3339(datetime.now(UTC)))
            for room in self._rooms.values():
                room.pass_on(frame)

    def _update(self, room: Room, update: presence_pb2.RoomUpdate) -> None:
        peers = (
            Peer(peer.session_id, peer.number, (peer.cursor, peer.drag)) for peer in update.peers
        )
        doubted = room.elsewhere() if update.anew else ()
        room.hear_of(peers, update.left_session_ids)
        if doubted:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, room.forget, doubted)
        if update.anew:
            room.catch_up(update.revision)
        else:
            room.revise(update.revision)
        for admission in update.admissions:
            session = self._sessions.get(admission.session_id)
            if session is not None and not session.ended:
                session.admit(admission.number)
        if room.shared != update.shared:
            room.shared = update.shared
            for session_id in room.window_ids():
                self.say(self._sessions[session_id])
        for frame in update.frames:
            room.pass_on(frame)

    def request(self) -> presence_pb2.ConnectRequest:
        """What there is to tell of the next sessions, so many that the message stays small."""
        request = presence_pb2.ConnectRequest()
        for session in list(islice(self._waiting, MAX_SESSIONS)):
            del self._waiting[session]
            if session.ended:
                if self._told.pop(session, None) is not None:
                    request.left_session_ids.append(session.session_id)
                continue
            if session not in self._told:
                self._told[session] = NOWHERE
                place = session.room.place
                request.joins.add(
                    session_id=session.session_id,
                    account_id=place.account_id,
                    canvas_id=place.canvas_id,
                    revision=session.revision,
                    number=session.number,
                    term=self._term,
                    incarnation=session.room.incarnation,
                )
            # Where nobody else is, nobody has to know.
            presence = session.presence if session.room.shared else NOWHERE
            if presence != self._told[session]:
                self._told[session] = presence
                cursor, drag = presence
                request.moves.add(session_id=session.session_id, cursor=cursor, drag=drag)
        return request
