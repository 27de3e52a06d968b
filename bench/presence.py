"""Windows that move their cursors, and windows that are quiet: `python -m bench.presence`.

The load is here, gateway and presence are processes of their own; all share the machine's cores.
"""

import asyncio
import base64
import json
import secrets
import statistics
import struct
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from bench.http import Browser
from bench.suite import Bench, bench_suite
from servicekit.telemetry import configure_logs

PER_ROOM = 50
PER_SECOND = 20
SECONDS = 10
IDLE = 1_000
ROOMS = (1, 4, 8)
# What tells a peer in `peer` and `peers` frames.
_ENTRY = b'"number":'
_TEXT = 0x81


class Window(asyncio.Protocol):
    """A lean WebSocket: counts the peers that it is told of, and now and then how late."""

    def __init__(self, request: bytes, *, looks: bool) -> None:
        self._request = request
        self._looks = looks
        self._unread = b""
        self._transport: asyncio.Transport | None = None
        self.opened = asyncio.get_running_loop().create_future()
        self.told = 0
        self.lateness: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the WebSocket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Reads whole frames."""
        self._unread += data
        if not self.opened.done():
            head, found, rest = self._unread.partition(b"\r\n\r\n")
            if not found:
                return
            assert b" 101 " in head, head
            self._unread = rest
            self.opened.set_result(None)
        while (frame := self._frame()) is not None:
            self._read(frame)

    def move(self) -> None:
        """Tells where the cursor is: at the time of sending, in milliseconds."""
        cursor = {"x": _now(), "y": 0}
        self._send(json.dumps({"type": "presence", "cursor": cursor, "drag": None}).encode())

    def close(self) -> None:
        """Goes, without a word."""
        assert self._transport is not None
        self._transport.abort()

    def _frame(self) -> bytes | None:
        """The next frame, if it has come whole."""
        if len(self._unread) < 2:
            return None
        size, start = self._unread[1], 2
        if size == 126:
            size, start = int.from_bytes(self._unread[2:4]), 4
        elif size == 127:
            size, start = int.from_bytes(self._unread[2:10]), 10
        if len(self._unread) < start + size:
            return None
        frame = self._unread[start : start + size]
        kind, self._unread = self._unread[0], self._unread[start + size :]
        return frame if kind == _TEXT else b""

    def _read(self, frame: bytes) -> None:
        if not frame.startswith(b'{"type":"peer'):
            return
        self.told += frame.count(_ENTRY)
        if self._looks:
            value = json.loads(frame)
            now = _now()
            for peer in value.get("peers", [value]):
                if peer["cursor"] is not None:
                    self.lateness.append((now - peer["cursor"]["x"]) % 1e7)

    def _send(self, text: bytes) -> None:
        assert self._transport is not None
        # A mask of nothing, which leaves the text as it is.
        size = bytes([0x80 | len(text)]) if len(text) < 126 else struct.pack(">BH", 0xFE, len(text))
        self._transport.write(bytes([_TEXT]) + size + b"\0\0\0\0" + text)


@dataclass(frozen=True)
class Figures:
    """What a run of moving windows came to."""

    delivered: float
    p50: float
    p99: float
    cpu_micros: float

    def __str__(self) -> str:
        return (
            f"{self.delivered:.1%} delivered, p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms, "
            f"gateway and presence {self.cpu_micros:.1f} µs an update delivered"
        )


async def moving(bench: Bench, rooms: int) -> Figures:
    """50 windows in each room, each moving its cursor 20 times a second for 10 seconds."""
    windows = await _opened(bench, rooms, PER_ROOM)
    for window in windows:
        window.told = 0
        window.lateness.clear()
    before = _cpu_seconds(bench)
    await asyncio.gather(*(_moves(window) for window in windows))
    await asyncio.sleep(0.5)
    spent = _cpu_seconds(bench) - before
    told = sum(window.told for window in windows)
    late = sorted(lateness for window in windows for lateness in window.lateness)
    for window in windows:
        window.close()
    return Figures(
        delivered=told / (rooms * PER_ROOM * (PER_ROOM - 1) * PER_SECOND * SECONDS),
        p50=statistics.median(late),
        p99=late[int(len(late) * 0.99)],
        cpu_micros=spent / told * 1e6,
    )


async def quiet(bench: Bench) -> str:
    """What 1,000 windows that do nothing hold and cost, in a sentence."""
    before = _rss(bench)
    windows = await _opened(bench, IDLE // PER_ROOM, PER_ROOM)
    await asyncio.sleep(2)
    held = (_rss(bench) - before) / len(windows) / 1024
    began, spent = time.monotonic(), _cpu_seconds(bench)
    await asyncio.sleep(SECONDS)
    share = (_cpu_seconds(bench) - spent) / (time.monotonic() - began)
    for window in windows:
        window.close()
    return f"{len(windows)} quiet windows: {held:.1f} KiB each, {share:.1%} of a core"


async def main() -> None:
    """Prints what each load came to."""
    configure_logs("bench", "warning")
    async with bench_suite(workers=1) as bench:
        for rooms in ROOMS:
            print(f"{rooms} × {PER_ROOM} windows × {PER_SECOND}/s: {await moving(bench, rooms)}")
        print(await quiet(bench))


async def _moves(window: Window) -> None:
    loop = asyncio.get_running_loop()
    # Not all at once, as people do not.
    due = loop.time() + secrets.randbelow(1000) / 1000 / PER_SECOND
    for _ in range(PER_SECOND * SECONDS):
        await asyncio.sleep(max(0, due - loop.time()))
        window.move()
        due += 1 / PER_SECOND


async def _opened(bench: Bench, rooms: int, per_room: int) -> list[Window]:
    """Windows of one account, on a canvas for each room."""
    browser = await bench.browser()
    windows: list[Window] = []
    for room in range(rooms):
        canvas_id = f"room-{room}"
        creation = {"type": "create_canvas", "canvas": {"title": "A room"}}
        await browser.change(canvas_id, creation)
        path = f"/api/canvas-projects/{canvas_id}/realtime"
        made = [_open(bench, browser, path) for _ in range(per_room)]
        windows += await asyncio.gather(*made)
    await asyncio.gather(*(window.opened for window in windows))
    await asyncio.sleep(1)
    await browser.close()
    return windows


async def _open(bench: Bench, browser: Browser, path: str) -> Window:
    parts = urlsplit(bench.url)
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nOrigin: {bench.url}\r\n"
        f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nCookie: {browser.cookie}\r\n\r\n"
    )
    # One in ten reads what it is told, the others count it.
    looks = secrets.randbelow(10) == 0
    assert parts.hostname is not None
    assert parts.port is not None
    loop = asyncio.get_running_loop()
    _, window = await loop.create_connection(
        lambda: Window(request.encode(), looks=looks), parts.hostname, parts.port
    )
    return window


def _processes(bench: Bench) -> list[psutil.Process]:
    return [psutil.Process(bench.pids[name]) for name in ("gateway", "presence")]


def _cpu_seconds(bench: Bench) -> float:
    times = [process.cpu_times() for process in _processes(bench)]
    return sum(each.user + each.system for each in times)


def _rss(bench: Bench) -> int:
    return sum(process.memory_info().rss for process in _processes(bench))


def _now() -> float:
    return round(time.monotonic() * 1000 % 1e7, 2)


if __name__ == "__main__":
    asyncio.run(main())
