"""A real Valkey for tests."""

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from suite import valkey
from suite.children import child_command
from suite.constellation import free_port


class ValkeyServer:
    """A server that can be killed, and started again with nothing in it."""

    def __init__(self, folder: Path) -> None:
        self._server = valkey.Server(folder, free_port())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self._server.url()

    async def start(self) -> None:
        """Runs it, and waits until it answers."""
        self._process = subprocess.Popen(
            child_command(self._server.command(), signalled=signal.SIGKILL),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        async with asyncio.timeout(30):
            while not await self._server.ready():
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@asynccontextmanager
async def valkey_server() -> AsyncIterator[ValkeyServer]:
    """A server that runs, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="gesso-test-") as folder:
        server = ValkeyServer(Path(folder))
        await server.start()
        try:
            yield server
        finally:
            server.kill()
