"""What the windows of a room have been told of its peers, and what is news to them."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.rooms.peers import Peer


@dataclass(frozen=True)
class News:
    """What has to be told now, and who is there.

    `newcomers` are to be welcomed and hear nothing else. The `settled` hear who `left`, and who
    `changed` but for themselves.
    """

    newcomers: tuple[str, ...]
    settled: tuple[str, ...]
    left: tuple[str, ...]
    changed: tuple[Peer, ...]


class Audience:
    """The windows of a room.

    Keeps what they were told instead of what to tell, so that only the latest presence ever is
    (PR7).
    """

    def __init__(self) -> None:
        self._newcomers: dict[str, None] = {}
        self._settled: dict[str, None] = {}
        self._told: dict[str, Peer] = {}
        self._touched: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._settled)

    def settled(self) -> tuple[str, ...]:
        """The windows that have been welcomed."""
        return tuple(self._settled)

    def welcome(self, session_id: str) -> None:
        """Has a window told everything, again if it was before."""
        self._settled.pop(session_id, None)
        self._newcomers[session_id] = None

    def dismiss(self, session_id: str) -> None:
        """Tells a window nothing any more."""
        self._settled.pop(session_id, None)
        self._newcomers.pop(session_id, None)

    def touch(self, session_id: str) -> None:
        """Marks that a peer came, changed or went."""
        self._touched[session_id] = None

    def take(self, peers: Mapping[str, Peer]) -> News:
        """What is news since the last time, which counts as told."""
        left: list[str] = []
        changed: list[Peer] = []
        for session_id in self._touched:
            peer, told = peers.get(session_id), self._told.get(session_id)
            if peer is not None and peer != told:
                self._told[session_id] = peer
                changed.append(peer)
            elif peer is None and told is not None:
                del self._told[session_id]
                left.append(session_id)
        news = News(
            newcomers=tuple(self._newcomers),
            settled=tuple(self._settled),
            left=tuple(left),
            changed=tuple(changed),
        )
        self._settled |= self._newcomers
        self._newcomers, self._touched = {}, {}
        return news
