"""A PostgreSQL between us and PostgreSQL that cuts or stalls connections where a test says."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Passes everything on, but for the next message that holds `word`, if one is set."""

    def __init__(self) -> None:
        self.word: bytes | None = None
        self.answered = False
        self.stalls = False
        self.cuts = 0
        self._given_up = asyncio.Event()

    def cut_at(self, word: bytes, *, answered: bool) -> None:
        """Cuts the next connection that says `word`: before it arrives, or once it was answered."""
        self.word, self.answered, self.stalls = word, answered, False

    def stall_at(self, word: bytes) -> asyncio.Event:
        """Has the next connection that says `word` hear nothing any more, as if its line was cut.

        Returns what is set when we have given it up.
        """
        self.word, self.answered, self.stalls = word, False, True
        self._given_up = asyncio.Event()
        return self._given_up

    async def serve(
        self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection."""
        server_reader, server_writer = await asyncio.open_unix_connection(target)
        back = asyncio.create_task(_pump(server_reader, writer))
        is_stalled = False
        try:
            while data := await reader.read(65536):
                if self.word is not None and self.word in data:
                    self.word = None
                    self.cuts += 1
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    if self.answered:
                        server_writer.write(data)
                        await server_reader.read(65536)
                    is_stalled = self.stalls
                    while is_stalled and await reader.read(65536):
                        pass
                    break
                server_writer.write(data)
                await server_writer.drain()
        except ConnectionError:
            pass
        finally:
            back.cancel()
            server_writer.close()
            writer.close()
            if is_stalled:
                self._given_up.set()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def cutting_proxy(database_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of a database, and the URL of the database through it."""
    parts = urlsplit(database_url)
    (folder,) = parse_qs(parts.query)["host"]
    proxy = Proxy()
    with tempfile.TemporaryDirectory(prefix="gesso-proxy-") as own:
        server = await asyncio.start_unix_server(
            lambda reader, writer: proxy.serve(f"{folder}/{_SOCKET}", reader, writer),
            Path(own) / _SOCKET,
        )
        async with server:
            yield proxy, parts._replace(query=f"host={own}").geturl()
