"""Who is in a room, as windows see it."""

import json
from dataclasses import dataclass
from functools import cached_property

Presence = tuple[bytes, bytes]
NOWHERE: Presence = (b"null", b"null")


@dataclass(frozen=True)
class Peer:
    """A session as the others see it; its presence is a cursor and a drag preview, as JSON."""

    session_id: str
    number: int
    presence: Presence = NOWHERE

    @cached_property
    def entry(self) -> bytes:
        """Its JSON object, made once for all frames that it is part of."""
        return b'{"id":%s,"number":%d,"cursor":%s,"drag":%s}' % (
            json.dumps(self.session_id, ensure_ascii=False).encode(),
            self.number,
            *self.presence,
        )
