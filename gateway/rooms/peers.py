"""Who is in a room, as windows see it."""

import json
from functools import lru_cache
from typing import NamedTuple

Presence = tuple[bytes, bytes]
NOWHERE: Presence = (b"null", b"null")


class Peer(NamedTuple):
    """A session as the others see it; its presence is a cursor and a drag preview, as JSON."""

    session_id: str
    number: int
    presence: Presence = NOWHERE

    def entry(self) -> bytes:
        """Its JSON object."""
        cursor, drag = self.presence
        return b'%s%s,"drag":%s}' % (_head(self.session_id, self.number), cursor, drag)


@lru_cache(maxsize=16 * 1024)
def _head(session_id: str, number: int) -> bytes:
    quoted = json.dumps(session_id, ensure_ascii=False).encode()
    return b'{"id":%s,"number":%d,"cursor":' % (quoted, number)
