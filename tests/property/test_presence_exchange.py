"""Instances that come, die, hear each other late or not at all agree in the end who is there."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from services.presence.domain.rooms import Place, Room, Rooms
from services.presence.domain.roster import Peer
from services.presence.exchange import SILENCE_SECONDS, Exchange
from services.presence.leases import RENEWAL_SECONDS

PLACE = Place("us_a", "c")
AT = st.sampled_from([0, 0, 1, 1, 2])


class Gate:
    """A gateway of an instance, which hears what it wants when it wants."""

    def wake(self, room: Room) -> None:
        pass


@dataclass
class Session:
    """The truth of a session: where it is, and in which term of its gateway's stream."""

    session_id: str
    number: int
    at: "Instance | None"
    incarnation: int
    term: int = 1
    cursor: bytes = b"null"

    def peer(self) -> Peer:
        return Peer(self.session_id, self.number, self.cursor, term=self.term)


@dataclass(eq=False)
class Instance:
    """One instance, and what was said to it that it has not heard yet."""

    name: str
    gate: Gate = field(default_factory=Gate)
    inbox: list[tuple[Place, bytes]] = field(default_factory=list)
    subscribed: bool = False
    # The sessions that it takes for its own, in which term.
    seats: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exchange = Exchange(
            self.name, woken=lambda: None, announced=lambda _: None, ended=self.end
        )
        self.rooms = Rooms(self.exchange.opened, self._closed)

    def _closed(self, room: Room) -> None:
        self.exchange.closed(room)
        self.subscribed = False
        self.inbox.clear()

    def seat(self, session: Session) -> None:
        known = self.rooms.at(PLACE)
        if known is not None and known.incarnation < session.incarnation:
            self.end(PLACE)
        if known is not None and known.incarnation > session.incarnation:
            return
        room = self.rooms.seat(PLACE, session.incarnation)
        room.listen(self.gate)
        room.admit(session.peer(), self.gate)
        self.seats[session.session_id] = session.term

    def end(self, place: Place) -> None:
        """The sessions in a room whose canvas is gone are closed."""
        assert self.rooms.forget(place) is not None
        self.seats.clear()

    def unseat(self, session_id: str) -> None:
        room = self.rooms.at(PLACE)
        assert room is not None
        del self.seats[session_id]
        room.drop(session_id, self.gate, self.gate)
        if not self.seats:
            room.ignore(self.gate)
        self.rooms.unseat(room)

    def room(self) -> Room | None:
        return self.rooms.at(PLACE)

    def roster(self) -> dict[str, Peer]:
        room = self.room()
        return {peer.session_id: peer for peer in room.roster} if room else {}


class Town(RuleBasedStateMachine):
    """Drives three instances beside the truth."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.is_faultless = True
        self.made = 0
        self.incarnation = 1
        self.instances: list[Instance] = []
        self.truth: dict[str, Session] = {}

    @initialize()
    def three_instances(self) -> None:
        self.instances = [self._instance() for _ in range(3)]

    @rule(target=sessions, at=AT, late=st.booleans())
    def join(self, at: int, *, late: bool) -> str:
        self.made += 1
        session = Session(f"s{self.made}", self.made, self.instances[at], self.incarnation)
        self.truth[session.session_id] = session
        self.instances[at].seat(session)
        if not late:
            self.subscribe(at)
        return session.session_id

    @rule()
    def make_the_canvas_anew(self) -> None:
        """Who joins from now on is in another room; nobody is told that the old one is gone."""
        self.incarnation += 1

    @rule(session_id=sessions, cursor=st.sampled_from([b"1", b"2", b"null"]))
    def move(self, session_id: str, cursor: bytes) -> None:
        session = self.truth[session_id]
        if session.at is None or session_id not in session.at.seats:
            return
        session.cursor = cursor
        room = session.at.room()
        assert room is not None
        room.move(session_id, cursor, b"null", session.at.gate)

    @rule(session_id=consumes(sessions))
    def leave(self, session_id: str) -> None:
        del self.truth[session_id]
        for instance in self.instances:
            if session_id in instance.seats:
                instance.unseat(session_id)

    @rule(session_id=sessions, at=AT)
    def come_over_another_instance(self, session_id: str, at: int) -> None:
        """The stream to the one before is lost, which it has still to miss."""
        session = self.truth[session_id]
        instance = self.instances[at]
        if session.at is instance or session_id in instance.seats:
            return
        session.at = instance
        session.term += 1
        session.cursor = b"null"
        instance.seat(session)

    @rule(at=AT)
    def miss_lost_streams(self, at: int) -> None:
        instance = self.instances[at]
        for session_id, term in list(instance.seats.items()):
            session = self.truth.get(session_id)
            if session is None or session.term != term:
                instance.unseat(session_id)

    @rule(at=AT)
    def subscribe(self, at: int) -> None:
        instance = self.instances[at]
        if not instance.subscribed and instance.exchange.heard(PLACE) is not None:
            instance.subscribed = True

    @rule(at=AT)
    def lose_the_connection(self, at: int) -> None:
        self.is_faultless = False
        self.instances[at].subscribed = False
        self.instances[at].inbox.clear()
        self.instances[at].exchange.unheard()

    @rule(at=AT, fails=st.booleans())
    def say(self, at: int, *, fails: bool) -> None:
        said = dict(self.instances[at].exchange.say())
        if fails:
            self.is_faultless = False
            self.instances[at].exchange.say_again(said)
        else:
            self._deliver(said)

    @rule(at=AT, count=st.integers(1, 3), twice=st.booleans())
    def hear(self, at: int, count: int, *, twice: bool) -> None:
        instance = self.instances[at]
        for _ in range(count):
            if not instance.inbox:
                break
            place, said = instance.inbox.pop(0)
            instance.exchange.take(place, said, self.now)
            if twice:
                instance.exchange.take(place, said, self.now)

    @rule(at=AT)
    def die(self, at: int) -> None:
        """Without a word; another begins in its place."""
        self.is_faultless = False
        for session in self.truth.values():
            if session.at is self.instances[at]:
                session.at = None
        self.instances[at] = self._instance()

    @rule()
    def time_goes_by(self) -> None:
        self.now += RENEWAL_SECONDS
        for instance in self.instances:
            instance.exchange.forget_silent(self.now)
            instance.exchange.renew()

    @rule()
    def silence(self) -> None:
        """Everything is said and heard, for as long as the dead are remembered."""
        for at in range(3):
            self.miss_lost_streams(at)
        self._flow()
        if self.is_faultless:
            self._check()
        for _ in range(int(SILENCE_SECONDS / RENEWAL_SECONDS) + 2):
            self._flow()
            self.time_goes_by()
        self._flow()
        self._check()

    def _check(self) -> None:
        seated = [
            it for it in self.truth.values() if it.at is not None and it.session_id in it.at.seats
        ]
        newest = max((it.incarnation for it in seated), default=0)
        here = {it.session_id: it.peer() for it in seated}
        assert {it.incarnation for it in seated} <= {newest}
        for instance in self.instances:
            if instance.seats:
                assert instance.roster() == here

    @invariant()
    def everybody_sees_its_own(self) -> None:
        for session in self.truth.values():
            if session.at is not None and session.session_id in session.at.seats:
                assert session.at.roster()[session.session_id] == session.peer()

    @invariant()
    def nobody_sees_who_is_on_another_canvas(self) -> None:
        for instance in self.instances:
            room = instance.room()
            for session_id in instance.roster():
                session = self.truth.get(session_id)
                assert session is None or room is None or session.incarnation == room.incarnation

    def _flow(self) -> None:
        for _ in range(4):
            for at in range(3):
                self.subscribe(at)
                self.say(at, fails=False)
            for at in range(3):
                self.hear(at, 1000, twice=False)

    def _deliver(self, said: dict[Place, bytes]) -> None:
        for instance in self.instances:
            if instance.subscribed:
                instance.inbox += said.items()

    def _instance(self) -> Instance:
        self.made += 1
        return Instance(f"pi_{self.made}")


def test_instances_agree_in_the_end_who_is_there() -> None:
    """PR18 PR22 PR23"""
    run_state_machine_as_test(
        Town, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )


def test_what_an_instance_said_before_a_session_left_it_counts_no_more() -> None:
    """PR16 PR22"""
    town = Town()
    town.three_instances()
    session_id = town.join(0, late=False)
    town.join(1, late=False)
    town.say(0, fails=False)

    town.come_over_another_instance(session_id, 1)
    town.hear(1, 1, twice=False)

    town.everybody_sees_its_own()
    town.silence()
