"""What a person waits for: the first words of a text, the edit of the other window."""

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect

from bench.http import Browser
from bench.suite import Bench
from bench.timing import Timing, summary

TEXTS = 60
EDITS = 300
CANVAS = "bench"
CREATION = {"type": "create_canvas", "canvas": {"title": "Bench"}}


async def first_delta(bench: Bench) -> Timing:
    """From sending POST /api/tasks until the first delta is read from the stream."""
    browser = await bench.browser()
    parts = urlsplit(bench.url)
    lasts: list[float] = []
    began_all = time.perf_counter()
    for _ in range(TEXTS):
        began = time.perf_counter()
        _, body = await browser.ask(
            "POST", "/api/tasks", {"type": "text", "prompt": "a lantern !tokens=1"}
        )
        task_id = json.loads(body)["id"]
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(
            f"GET /api/tasks/{task_id}/text-events HTTP/1.1\r\nHost: gesso\r\n"
            f"Cookie: {browser.cookie}\r\n\r\n".encode()
        )
        await reader.readuntil(b"event: delta")
        lasts.append(time.perf_counter() - began)
        await reader.readuntil(b"event: terminal")
        writer.close()
        await writer.wait_closed()
    await browser.close()
    return summary(lasts, time.perf_counter() - began_all)


async def invalidation(bench: Bench) -> Timing:
    """From sending an edit in one window until another window is told of its revision."""
    browser = await bench.browser()
    await browser.change(CANVAS, CREATION)
    async with _window(bench, browser) as window:
        await _frame(window, "welcome")
        lasts: list[float] = []
        title = "Bench"
        began_all = time.perf_counter()
        for number in range(EDITS):
            titles = {"value": f"Bench {number}", "beforeValue": title}
            edit = {"type": "set_field", "field": "title", **titles}
            title = titles["value"]
            began = time.perf_counter()
            sent = asyncio.create_task(browser.change(CANVAS, edit))
            while (await _frame(window, "invalidate"))["revision"] != number + 2:
                pass
            lasts.append(time.perf_counter() - began)
            await sent
            # As people edit: what comes in a hurry waits for the tick of presence, 16 ms.
            await asyncio.sleep(0.03)
        timing = summary(lasts, time.perf_counter() - began_all)
    await browser.close()
    return timing


def _window(bench: Bench, browser: Browser) -> connect:
    url = f"{bench.url.replace('http', 'ws')}/api/canvas-projects/{CANVAS}/realtime"
    headers = {"Cookie": browser.cookie}
    return connect(url, additional_headers=headers, origin=bench.url)  # type: ignore[arg-type] # a NewType of str


async def _frame(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        frame: dict[str, Any] = json.loads(await socket.recv())
        if frame["type"] == kind:
            return frame
