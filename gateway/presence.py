"""The gateway's end of presence: one stream for the sockets of all windows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

import grpc
from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub

from gateway.mailbox import Closed, Mailbox
from gateway.pace import BURST, RATE_PER_SECOND, AbuseWatch, TokenBucket
from servicekit.background import background
from servicekit.client import Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from servicekit.ids import new_id
from servicekit.pauses import growing
from servicekit.telemetry import logger

CLOSE_LIMIT = 4429
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0
TICK_SECONDS = 0.008
MAX_SESSIONS = 500

Presence = tuple[bytes, bytes]
NOWHERE: Presence = (b"null", b"null")


class Session:
    """A window's socket, from `PresenceLink.session`.

    `revision` is the canvas's that the next welcome tells at least; who reads a newer one may
    set it.
    """

    def __init__(
        self,
        account_id: str,
        canvas_id: str,
        revision: int,
        say: Callable[["Session"], None],
        pass_on: Callable[[bytes], bool],
    ) -> None:
        self.account_id = account_id
        self.canvas_id = canvas_id
        self.revision = revision
        self.presence = NOWHERE
        self.behind = False
        self.ended = False
        self._say = say
        self._mailbox = Mailbox(self._fall_behind, pass_on)
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._bucket = TokenBucket(per_second=RATE_PER_SECOND, burst=BURST, now=now)
        self._watch = AbuseWatch(now)
        self._moving: asyncio.TimerHandle | None = None

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

    async def events(self) -> AsyncIterator[bytes | Closed]:
        """The frames to send, then at most one `Closed`, after which there is nothing more.

        A reader that is too slow for its frames gets a welcome that replaces those it missed.
        """
        while True:
            event = await self._mailbox.take()
            yield event
            if isinstance(event, Closed):
                return

    def hear(self, frame: bytes, *, replaces: bool) -> None:
        """Takes a frame from the service."""
        if replaces:
            self._mailbox.put_anew(frame)
        else:
            self._mailbox.put(frame)

    def end(self, closed: Closed) -> None:
        """Ends it here and at the service."""
        self.ended = True
        if self._moving is not None:
            self._moving.cancel()
        self._mailbox.close(closed)
        self._say(self)

    def _move(self) -> None:
        now = self._loop.time()
        if self._bucket.take(now):
            self._moving = None
            self._say(self)
        else:
            self._moving = self._loop.call_later(self._bucket.wait(now), self._move)

    def _fall_behind(self) -> None:
        self.behind = True
        self._say(self)


class PresenceLink:
    """The sessions of this gateway, and the stream by which presence knows of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sessions: dict[Session, None] = {}
        self._stream = _Stream(())

    @asynccontextmanager
    async def session(
        self,
        account_id: str,
        canvas_id: str,
        revision: int,
        *,
        pass_on: Callable[[bytes], bool] = lambda _: False,
    ) -> AsyncIterator[Session]:
        """A socket of an account on a canvas that is its own, until the block is left.

        Frames that `pass_on` takes are not among the session's events.
        """
        session = Session(account_id, canvas_id, revision, self._say, pass_on)
        self._sessions[session] = None
        self._say(session)
        try:
            yield session
        finally:
            del self._sessions[session]
            session.end(Closed(1000, "The window left."))

    async def keep(self) -> None:
        """Holds the stream, for ever: a lost one is made anew, and everybody joins again."""
        log = logger("gateway.presence")
        loop = asyncio.get_running_loop()
        stub = PresenceServiceStub(self._client.channel)
        pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        fresh = True
        while True:
            began = loop.time()
            self._stream = stream = _Stream(self._sessions)
            try:
                async with self._client.exchange(
                    stub.Connect, stream.requests(), Behalf()
                ) as responses:
                    async for response in responses:
                        stream.receive(response)
                why = "it was ended"
            except (Failure, grpc.aio.AioRpcError) as error:
                why = str(error)
            finally:
                stream.end()
            if loop.time() - began > LONGEST_PAUSE_SECONDS:
                pauses = growing(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                fresh = True
            if fresh:
                log.warning("presence is away", why=why, sessions=len(self._sessions))
                fresh = False
            await asyncio.sleep(next(pauses))

    def _say(self, session: Session) -> None:
        self._stream.say(session)


@asynccontextmanager
async def linked(client: Client) -> AsyncIterator[PresenceLink]:
    """A link to the presence service, kept inside the block."""
    link = PresenceLink(client)
    async with background(link.keep()):
        yield link


@dataclass
class _Seat:
    """What the service has been told of a session over one stream."""

    session_id: str
    presence: Presence = NOWHERE


class _Stream:
    """One call to the service: tells it of sessions what it does not know yet."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._seats: dict[Session, _Seat] = {}
        self._sessions: dict[str, Session] = {}
        self._waiting = dict.fromkeys(sessions)
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
                yield presence_pb2.ConnectRequest(batch=self._batch())
            due = loop.time() + TICK_SECONDS

    def receive(self, response: presence_pb2.ConnectResponse) -> None:
        """Does what the service says."""
        match response.WhichOneof("event"):
            case "deliver":
                deliver, frame = response.deliver, response.deliver.frame
                cut = {
                    each.session_id: frame[: each.start] + frame[each.end :]
                    for each in deliver.omissions
                }
                for session_id in deliver.session_ids:
                    session = self._sessions.get(session_id)
                    if session is not None:
                        session.hear(cut.get(session_id, frame), replaces=deliver.replaces)
            case "close":
                session = self._sessions.get(response.close.session_id)
                if session is not None:
                    session.end(Closed(response.close.code, response.close.reason))

    def _batch(self) -> presence_pb2.Batch:
        """What there is to tell of the next sessions, so many that the message stays small."""
        sessions = list(islice(self._waiting, MAX_SESSIONS))
        for session in sessions:
            del self._waiting[session]
        return presence_pb2.Batch(
            requests=[request for session in sessions for request in self._news_of(session)]
        )

    def _news_of(self, session: Session) -> Iterator[presence_pb2.ConnectRequest]:
        seat = self._seats.get(session)
        behind, session.behind = session.behind, False
        if session.ended:
            if seat is not None:
                del self._seats[session], self._sessions[seat.session_id]
                yield presence_pb2.ConnectRequest(
                    leave=presence_pb2.Leave(session_id=seat.session_id)
                )
            return
        if seat is None:
            # A fresh id for each stream: the service may not have noticed yet that one broke.
            seat = self._seats[session] = _Seat(new_id("ws"))
            self._sessions[seat.session_id] = session
            yield presence_pb2.ConnectRequest(
                join=presence_pb2.Join(
                    session_id=seat.session_id,
                    account_id=session.account_id,
                    canvas_id=session.canvas_id,
                    revision=session.revision,
                )
            )
        elif behind:
            yield presence_pb2.ConnectRequest(
                resync=presence_pb2.Resync(session_id=seat.session_id)
            )
        if session.presence != seat.presence:
            seat.presence = session.presence
            cursor, drag = session.presence
            yield presence_pb2.ConnectRequest(
                move=presence_pb2.Move(session_id=seat.session_id, cursor=cursor, drag=drag)
            )
