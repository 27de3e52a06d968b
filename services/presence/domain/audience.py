"""What somebody has been told of a room, and what is news to it."""

from dataclasses import dataclass

from services.presence.domain.roster import Peer, Roster
from services.presence.domain.versions import Version


@dataclass(frozen=True)
class News:
    """What has to be told now.

    `admitted` are peers of who is told, the others are everybody else's; `anew` says that they
    are all there are. `version` is what was committed, if there is something to tell, and whether
    leases changed. `shared` says that somebody else has peers in the room.
    """

    anew: bool
    admitted: tuple[Peer, ...]
    left: tuple[str, ...]
    changed: tuple[Peer, ...]
    version: Version | None
    leases_changed: bool
    shared: bool


class Audience:
    """What one who speaks for peers of a room has been told of the others.

    Keeps that instead of what to tell: so it has at most the size of a roster, however long
    nobody listens, and only the latest presence is ever told (PR7, PR8).
    """

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._admitted: dict[str, None] = {}
        self._told: dict[str, Peer] = {}
        self._touched: dict[str, None] = {}
        self._version: Version | None = None
        self._leases_changed = False
        # Nothing was told yet.
        self._anew = True

    def admit(self, session_id: str) -> None:
        """Has it told that a peer of its own has its number."""
        self.own(session_id)
        self._admitted[session_id] = None

    def own(self, session_id: str) -> None:
        """Tells it nothing more of a peer, since it is its own now."""
        self._own.add(session_id)
        self._told.pop(session_id, None)

    def disown(self, session_id: str) -> None:
        """Takes a peer for its own no longer."""
        self._own.discard(session_id)
        self._admitted.pop(session_id, None)

    def touch(self, session_id: str) -> None:
        """Marks that a peer came, changed or went."""
        # Where everything will be told, nothing need be marked.
        if not self._anew:
            self._touched[session_id] = None

    def revise(self, version: Version) -> None:
        """Has a version of the canvas told."""
        self._version = version if self._version is None else self._version.and_then(version)

    def revise_leases(self) -> None:
        """Has it told that leases of the canvas changed."""
        self._leases_changed = True

    def renew(self) -> None:
        """Has it told everything once more."""
        self._anew = True

    def take(self, roster: Roster) -> News:
        """What is news since the last time, which counts as told."""
        if self._anew:
            self._told.clear()
            self._touched = dict.fromkeys(peer.session_id for peer in roster)
        left: list[str] = []
        changed: list[Peer] = []
        for session_id in self._touched:
            peer, told = roster.peer(session_id), self._told.get(session_id)
            if peer is not None and session_id not in self._own and peer != told:
                self._told[session_id] = peer
                changed.append(peer)
            elif peer is None and told is not None:
                del self._told[session_id]
                left.append(session_id)
        admitted = (roster.peer(session_id) for session_id in self._admitted)
        news = News(
            anew=self._anew,
            admitted=tuple(peer for peer in admitted if peer is not None),
            left=tuple(left),
            changed=tuple(changed),
            version=self._version,
            leases_changed=self._leases_changed,
            shared=len(roster) > len(self._own),
        )
        self._admitted, self._touched = {}, {}
        self._version, self._leases_changed, self._anew = None, False, False
        return news
