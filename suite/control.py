"""The socket by which a process of the suite has others of it started and stopped.

One line asks, one line answers: `is-active NAME…` with a word for each, `start NAME` and
`stop NAME` with `ok`; what cannot be done is answered `no: ` and why. Only we ourselves can
connect: the socket is in a folder of our own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from suite.supervisor import Offered

MAX_LINE_BYTES = 64 * 1024
LINE_SECONDS = 5.0


@asynccontextmanager
async def controlled(offered: Offered, path: Path) -> AsyncIterator[None]:
    """Starts and stops processes as the socket says, inside the block."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One who says nothing, too much, or goes is not answered.
        with suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(LINE_SECONDS):
                line = await reader.readline()
                writer.write(f"{_answer(offered, line.decode().split())}\n".encode())
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answered, path, limit=MAX_LINE_BYTES)
    async with server:
        yield


def _answer(offered: Offered, words: list[str]) -> str:
    unknown = [name for name in words[1:] if name not in offered]
    match words:
        case [_, *_] if unknown:
            return f"no: there is no process {unknown[0]} to start or stop"
        case ["is-active", *names]:
            return " ".join(offered.state(name) for name in names)
        case ["start", name] if offered.state(name) == "deactivating":
            return f"no: {name} is ending"
        case ["start", name]:
            offered.start(name)
            return "ok"
        case ["stop", name]:
            offered.stop(name)
            return "ok"
    return "no: ask is-active NAME…, start NAME or stop NAME"
