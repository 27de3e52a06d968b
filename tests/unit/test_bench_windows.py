"""The windows of the bench count what they are told, however it arrives."""

from typing import Any

import pytest

from bench.dialects import Gesso, Hocuspocus, Tldraw, YWebsocket
from bench.sockets import TEXT, Dialect, Window

HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
NUMBER = 7


class Line:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def framed(text: bytes, kind: int = TEXT) -> bytes:
    size = bytes([len(text)]) if len(text) < 126 else b"\x7e" + len(text).to_bytes(2)
    return bytes([kind]) + size + text


def window(dialect: Dialect, line: Any) -> Window:
    made = Window(dialect, "bench", "room", NUMBER, "")
    made.connection_made(line)
    return made


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_places_of_others_are_counted_and_heartbeats_kept(step: int) -> None:
    ours = window(Gesso(), Line())
    places = [
        b'{"id":"ws_%d","number":1,"cursor":{"x":1.5,"y":%d},"drag":null}' % (n, n)
        for n in range(9)
    ]
    data = HEAD + b"".join(
        [
            framed(b'{"type":"welcome","peers":[' + places[1] + b"]}"),
            framed(b'{"type":"peer",' + places[2][1:]),
            framed(b'{"type":"heartbeat"}'),
            framed(b'{"type":"peers","peers":[' + b",".join(places) + b"]}"),
        ]
    )

    for at in range(0, len(data), step):
        ours.data_received(data[at : at + step])

    # All but its own.
    assert (ours.told, len(ours.beats)) == (1 + 8, 1)
    assert ours.joined.done()


async def test_a_ping_is_answered_with_what_it_says() -> None:
    line = Line()
    ours = window(Gesso(), line)

    ours.data_received(HEAD + framed(b"abcd", 0x89))

    assert line.written[-1] == b"\x8a\x84\0\0\0\0abcd"


@pytest.mark.parametrize("dialect", [Gesso(), Tldraw(), Hocuspocus(), YWebsocket()])
async def test_what_a_window_tells_is_counted_by_another_only(dialect: Dialect) -> None:
    """Servers pass on a place as it was sent, x and y and all."""
    for number, told in ((NUMBER, 0), (17, 1)):
        ours = window(dialect, Line())
        for count in (1, 2):
            moved = dialect.move("room", number, 12345.67, count)
            ours.count_anew()
            ours.data_received((HEAD if count == 1 else b"") + framed(moved, dialect.kind))

        assert ours.told == told
