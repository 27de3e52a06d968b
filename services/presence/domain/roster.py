"""Who is in a room: their numbers, and where they are."""

import json
from dataclasses import dataclass
from functools import cached_property

from services.presence.domain.failures import RoomFull

MAX_PEERS = 64


@dataclass(frozen=True)
class Peer:
    """A session as the others see it; cursor and drag preview as JSON."""

    session_id: str
    number: int
    cursor: bytes = b"null"
    drag: bytes = b"null"

    @cached_property
    def entry(self) -> bytes:
        """Its JSON object, made once for all frames that it is part of."""
        return b'{"id":%s,"number":%d,"cursor":%s,"drag":%s}' % (
            json.dumps(self.session_id, ensure_ascii=False).encode(),
            self.number,
            self.cursor,
            self.drag,
        )


class Roster:
    """The peers of one room, each under a number that is its own while it stays."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def peers(self) -> tuple[Peer, ...]:
        """All of them, in the order in which they joined."""
        return tuple(self._peers.values())

    def peer(self, session_id: str) -> Peer | None:
        """One of them, None if it is not here."""
        return self._peers.get(session_id)

    def join(self, session_id: str) -> None:
        """Lets a session in under the lowest free number (PR2). Raises `RoomFull` (PR3)."""
        taken = {peer.number for peer in self._peers.values()}
        free = (number for number in range(1, MAX_PEERS + 1) if number not in taken)
        number = next(free, None)
        if number is None:
            raise RoomFull(MAX_PEERS)
        self._peers[session_id] = Peer(session_id, number)

    def move(self, session_id: str, cursor: bytes, drag: bytes) -> bool:
        """Keeps the latest presence of a session that is here; whether it is another (PR6)."""
        before = self._peers[session_id]
        after = Peer(session_id, before.number, cursor, drag)
        self._peers[session_id] = after
        return after != before

    def leave(self, session_id: str) -> None:
        """Lets a session that is here go, which frees its number."""
        del self._peers[session_id]
