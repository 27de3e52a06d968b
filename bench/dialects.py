"""How windows speak to Gesso and its peers, byte for byte as their own clients do."""

import json
from collections.abc import Sequence

from bench.sockets import BINARY, TEXT


class Gesso:
    """Ours (docs/spec/presence.md)."""

    path = "/api/canvas-projects/{room}/realtime"
    kind = TEXT
    hello = b'{"type":"welcome"'

    def greeting(self, _room: str, _number: int) -> Sequence[bytes]:
        return ()

    def move(self, _room: str, number: int, x: float, _count: int) -> bytes:
        return b'{"type":"presence","cursor":{"x":%.2f,"y":%d},"drag":null}' % (x, number)


class Tldraw:
    """tldraw sync, version 8 of its protocol: each window has a record in the presence scope."""

    path = "/{room}"
    kind = TEXT
    hello = b'{"type":"connect"'

    def greeting(self, _room: str, _number: int) -> Sequence[bytes]:
        connect = {
            "type": "connect",
            "connectRequestId": "bench",
            "lastServerClock": -1,
            "protocolVersion": 8,
            "schema": {"schemaVersion": 2, "sequences": {}},
        }
        return (json.dumps(connect).encode(),)

    def move(self, _room: str, number: int, x: float, count: int) -> bytes:
        cursor = b'{"x":%.2f,"y":%d}' % (x, number)
        if count == 1:
            presence = b'["put",{"id":"presence:x","typeName":"presence","cursor":%s}]' % cursor
        else:
            presence = b'["patch",{"cursor":["put",%s]}]' % cursor
        return b'{"type":"push","clientClock":%d,"presence":%s}' % (count, presence)


class YWebsocket:
    """y-websocket: updates of awareness, as y-protocols writes them."""

    path = "/{room}"
    kind = BINARY
    hello = b"\0"

    def greeting(self, _room: str, _number: int) -> Sequence[bytes]:
        return ()

    def move(self, _room: str, number: int, x: float, count: int) -> bytes:
        return b"\1" + _awareness(number, x, count)


class Hocuspocus:
    """Hocuspocus: the same, behind the name of the document; one signs in first."""

    path = "/"
    kind = BINARY
    # No frame begins so: the name of a document is not empty.
    hello = b"\0"

    def greeting(self, room: str, _number: int) -> Sequence[bytes]:
        return (_text(room.encode()) + b"\2\0" + _text(b""),)

    def move(self, room: str, number: int, x: float, count: int) -> bytes:
        return _text(room.encode()) + b"\1" + _awareness(number, x, count)


def _awareness(client: int, x: float, clock: int) -> bytes:
    """One client's state. Clients are numbered from 0, which is one that nobody may be."""
    state = b'{"cursor":{"x":%.2f,"y":%d}}' % (x, client)
    return _text(b"\1" + _varuint(client + 1) + _varuint(clock) + _text(state))


def _text(text: bytes) -> bytes:
    return _varuint(len(text)) + text


def _varuint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(0x80 | value & 0x7F)
        value >>= 7
    written.append(value)
    return bytes(written)
