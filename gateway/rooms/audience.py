"""What the windows of a room have been told of its peers, and what is news to them."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.rooms.peers import Peer


@dataclass(frozen=True)
class News:
    """What has to be told to windows: who `left`, and who `changed` but for themselves."""

    session_ids: tuple[str, ...]
    left: tuple[str, ...]
    changed: tuple[Peer, ...]


@dataclass(frozen=True)
class Turn:
    """What has to be told now: one thing to most, and to each window that was busy its own.

    `newcomers` are to be welcomed and hear nothing else.
    """

    newcomers: tuple[str, ...]
    news: tuple[News, ...]


class Audience:
    """The windows of a room.

    Keeps what they were told instead of what to tell, so that only the latest presence ever is
    (PR7). Of one that is busy it keeps the hashes of what that one was told, which are small, and
    tells it nothing (PR8).
    """

    def __init__(self) -> None:
        self._newcomers: dict[str, None] = {}
        self._settled: dict[str, None] = {}
        self._busy: set[str] = set()
        self._behind: dict[str, dict[str, int]] = {}
        self._told: dict[str, Peer] = {}
        self._touched: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._settled) + len(self._behind)

    def welcomed(self) -> tuple[str, ...]:
        """The windows that have been welcomed."""
        return (*self._settled, *self._behind)

    def welcome(self, session_id: str) -> None:
        """Has a window told everything, again if it was before."""
        self._settled.pop(session_id, None)
        self._behind.pop(session_id, None)
        self._newcomers[session_id] = None

    def dismiss(self, session_id: str) -> None:
        """Tells a window nothing any more."""
        self._settled.pop(session_id, None)
        self._behind.pop(session_id, None)
        self._newcomers.pop(session_id, None)
        self._busy.discard(session_id)

    def pause(self, session_id: str) -> None:
        """Tells a window nothing for now, after what it is being told."""
        self._busy.add(session_id)
        if session_id in self._settled:
            del self._settled[session_id]
            self._behind[session_id] = {each: hash(peer) for each, peer in self._told.items()}

    def resume(self, session_id: str) -> None:
        """Has a window told what it missed."""
        self._busy.discard(session_id)

    def touch(self, session_id: str) -> None:
        """Marks that a peer came, changed or went."""
        self._touched[session_id] = None

    def take(self, peers: Mapping[str, Peer]) -> Turn:
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
        self._touched = {}
        news = News(tuple(self._settled), tuple(left), tuple(changed))
        newcomers = [each for each in self._newcomers if each not in self._busy]
        back = [each for each in self._behind if each not in self._busy]
        turn = Turn(tuple(newcomers), (news, *map(self._missed, back)))
        for session_id in newcomers:
            del self._newcomers[session_id]
        self._settled |= dict.fromkeys(newcomers + back)
        return turn

    def _missed(self, session_id: str) -> News:
        """What is news to a window that was told nothing for a while."""
        told = self._behind.pop(session_id)
        changed = (peer for peer in self._told.values() if told.get(peer.session_id) != hash(peer))
        return News(
            (session_id,),
            tuple(each for each in told if each not in self._told),
            tuple(peer for peer in changed if peer.session_id != session_id),
        )
