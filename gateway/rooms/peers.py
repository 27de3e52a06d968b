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
        return b'{"id":%s,"number":%d,"cursor":%s,"drag":%s}' % (
            _quoted(self.session_id),
            self.number,
            *self.presence,
        )


@lru_cache(maxsize=16 * 1024)
def _quoted(session_id: str) -> bytes:
    return json.dumps(session_id, ensure_ascii=False).encode()
