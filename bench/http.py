"""A lean HTTP/1.1 client, so that the client is not what is measured."""

import asyncio
import json
import secrets
from typing import Any, Self
from urllib.parse import urlsplit


class Browser:
    """One keep-alive connection with a session cookie and an allowed origin."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._origin = origin
        self.cookie = ""

    @classmethod
    async def at(cls, url: str) -> Self:
        """Connects to a gateway."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        return cls(reader, writer, url)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Sends one request; the status and the body of the answer."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: gesso\r\nOrigin: {self._origin}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
            f"Cookie: {self.cookie}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        for line in lines:
            if line.lower().startswith("set-cookie: "):
                self.cookie = line.split(": ", 1)[1].partition(";")[0]
        length = int(headers.get("content-length", 0))
        return int(lines[0].split()[1]), await self._reader.readexactly(length)

    async def change(self, canvas_id: str, *operations: Any, mutation_id: str = "") -> bytes:
        """Applies operations to a canvas, under a new mutation id if none is given; the answer."""
        request = request_of(*operations, mutation_id=mutation_id)
        status, body = await self.ask(
            "PATCH", f"/api/canvas-projects/{canvas_id}/operations", request
        )
        assert status == 200, body
        return body

    async def close(self) -> None:
        """Ends the connection."""
        self._writer.close()
        await self._writer.wait_closed()


def request_of(*operations: Any, mutation_id: str = "") -> dict[str, Any]:
    """A request to change a canvas, under a new mutation id if none is given."""
    return {
        "mutationId": mutation_id or secrets.token_hex(8),
        "baseRevision": 0,
        "operations": operations,
    }
