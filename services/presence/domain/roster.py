"""Who is in a room: their numbers, and where they are."""

from collections.abc import Iterator
from dataclasses import dataclass

MAX_PEERS = 64


@dataclass(frozen=True)
class Peer:
    """A session as the others see it; cursor and drag preview as JSON.

    Whoever has the greatest `term` of a session speaks for it.
    """

    session_id: str
    number: int
    cursor: bytes = b"null"
    drag: bytes = b"null"
    term: int = 0


class Roster:
    """The peers of one room, each with who speaks for it: a gateway, or another instance's id."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._speakers: dict[str, object] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        """All of them, in the order in which they came."""
        return iter(self._peers.values())

    def peer(self, session_id: str) -> Peer | None:
        """One of them, None if it is not here."""
        return self._peers.get(session_id)

    def speaker(self, session_id: str) -> object | None:
        """Who speaks for a peer, None if it is not here."""
        return self._speakers.get(session_id)

    def spoken_for_by(self, speaker: object) -> list[Peer]:
        """The peers that somebody speaks for."""
        return [peer for peer in self if self._speakers[peer.session_id] == speaker]

    def free_number(self, wanted: int) -> int | None:
        """The wanted number if it is free, or else the lowest that is (PR2); None if none is."""
        taken = {peer.number for peer in self}
        if 1 <= wanted <= MAX_PEERS and wanted not in taken:
            return wanted
        return next((number for number in range(1, MAX_PEERS + 1) if number not in taken), None)

    def put(self, peer: Peer, speaker: object) -> bool:
        """Has a peer here as its speaker says, a new speaker too; whether it is news."""
        self._speakers[peer.session_id] = speaker
        before = self._peers.get(peer.session_id)
        self._peers[peer.session_id] = peer
        return before != peer

    def drop(self, session_id: str, speaker: object) -> bool:
        """Lets a peer go if that is who speaks for it; whether it was."""
        if self._speakers.get(session_id) != speaker:
            return False
        del self._peers[session_id], self._speakers[session_id]
        return True
