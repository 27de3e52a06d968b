"""Passes on what we say to PostgreSQL or a service, but cuts or stalls where a test says."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Passes everything on, but for the next messages that hold `word`, if one is set."""

    def __init__(self) -> None:
        self.word: bytes | None = None
        self.answered = False
        self.answer = b""
        self.stalls = False
        self.times = 1
        self.cuts = 0
        self._given_up = asyncio.Event()

    def cut_at(self, word: bytes, *, answered: bool, answer: bytes = b"", times: int = 1) -> None:
        """Cuts the next connection that says `word`: before it arrives, or once it was answered.

        So many `times`. It was once `answer` comes back.
        """
        self.word, self.answered, self.stalls = word, answered, False
        self.answer, self.times = answer, times

    def stall_at(self, word: bytes) -> asyncio.Event:
        """Has the next connection that says `word` hear nothing any more, as if its line was cut.

        Returns what is set when we have given it up.
        """
        self.word, self.answered, self.stalls, self.times = word, False, True, 1
        self._given_up = asyncio.Event()
        return self._given_up

    async def serve(
        self,
        target: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One connection."""
        server_reader, server_writer = await target
        back = asyncio.create_task(_pump(server_reader, writer))
        is_stalled = False
        try:
            while data := await reader.read(65536):
                if self.word is not None and self.word in data:
                    self.times -= 1
                    if not self.times:
                        self.word = None
                    self.cuts += 1
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    if self.answered:
                        server_writer.write(data)
                        while got := await server_reader.read(65536):
                            if self.answer in got:
                                break
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
            lambda reader, writer: proxy.serve(
                asyncio.open_unix_connection(f"{folder}/{_SOCKET}"), reader, writer
            ),
            Path(own) / _SOCKET,
        )
        async with server:
            yield proxy, parts._replace(query=f"host={own}").geturl()


@asynccontextmanager
async def cutting_line(port: int) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy in front of a service on this machine, and the port to reach it through."""
    proxy = Proxy()
    server = await asyncio.start_server(
        lambda reader, writer: proxy.serve(
            asyncio.open_connection("127.0.0.1", port), reader, writer
        ),
        "127.0.0.1",
        0,
    )
    async with server:
        yield proxy, int(server.sockets[0].getsockname()[1])
