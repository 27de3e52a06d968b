"""What some sessions of a room have been told of it, and what is news to them."""

from dataclasses import dataclass

from services.presence.domain.roster import Peer, Roster
from services.presence.domain.versions import Version


@dataclass(frozen=True)
class News:
    """What has to be told now, and how the room is.

    `newcomers` are to be welcomed and hear nothing else. The `settled` hear who `left`, who
    `changed` but for themselves, the `version` of the canvas if there is one to tell, and whether
    its leases changed.
    """

    newcomers: tuple[Peer, ...]
    settled: tuple[str, ...]
    left: tuple[str, ...]
    changed: tuple[Peer, ...]
    version: Version | None
    leases_changed: bool
    peers: tuple[Peer, ...]
    revision: int


class Audience:
    """Those sessions of a room that one gateway speaks for.

    Keeps what they were told instead of what to tell: so it has at most the size of a roster,
    however long nobody listens, and only the latest presence is ever told (PR7, PR8).
    """

    def __init__(self, roster: Roster) -> None:
        self._newcomers: dict[str, None] = {}
        self._settled: dict[str, None] = {}
        self._told: dict[str, Peer] = {}
        self._version: Version | None = None
        self._leases_changed = False
        # Nothing was told yet: everybody may be news.
        self._touched = {peer.session_id: None for peer in roster.peers()}

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._settled)

    def welcome(self, session_id: str) -> None:
        """Has a session told everything, again if it was before."""
        self._settled.pop(session_id, None)
        self._newcomers[session_id] = None

    def dismiss(self, session_id: str) -> None:
        """Tells a session nothing any more."""
        self._settled.pop(session_id, None)
        self._newcomers.pop(session_id, None)

    def touch(self, session_id: str) -> None:
        """Marks that a peer came, changed or went."""
        self._touched[session_id] = None

    def revise(self, version: Version) -> None:
        """Has a version of the canvas told."""
        self._version = version if self._version is None else self._version.and_then(version)

    def revise_leases(self) -> None:
        """Has it told that leases of the canvas changed."""
        self._leases_changed = True

    def take(self, roster: Roster, revision: int) -> News:
        """What is news since the last time, which counts as told; `revision` is the room's."""
        left: list[str] = []
        changed: list[Peer] = []
        for session_id in self._touched:
            peer, told = roster.peer(session_id), self._told.get(session_id)
            if peer is not None and peer != told:
                self._told[session_id] = peer
                changed.append(peer)
            elif peer is None and told is not None:
                del self._told[session_id]
                left.append(session_id)
        peers = roster.peers()
        news = News(
            newcomers=tuple(peer for peer in peers if peer.session_id in self._newcomers),
            settled=tuple(self._settled),
            left=tuple(left),
            changed=tuple(changed),
            version=self._version,
            leases_changed=self._leases_changed,
            peers=peers,
            revision=revision,
        )
        self._settled |= self._newcomers
        self._newcomers, self._touched = {}, {}
        self._version, self._leases_changed = None, False
        return news
