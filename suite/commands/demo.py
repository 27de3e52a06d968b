"""`gesso demo`: the main job on real input."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape
from websockets.exceptions import WebSocketException

from suite.constellation import Wanted, free_port
from suite.state import StateFile
from suite.story import Story, WentWrong
from suite.up import CannotStart, running

FAILED = 1


def run_demo(url: str | None, data_folder: Path, prompt: str) -> int:
    """Plays the story against a suite, and returns 0 only if all of it happened."""
    console = Console(highlight=False)
    try:
        asyncio.run(_demo(url, data_folder, prompt, console))
    except WentWrong as error:
        sys.stderr.write(f"gesso demo: {error}\n")
        return FAILED
    except httpx.HTTPError as error:
        sys.stderr.write(f"gesso demo: the suite does not answer as it should: {error!r}\n")
        return FAILED
    except (CannotStart, OSError, WebSocketException) as error:
        sys.stderr.write(f"gesso demo: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        return 130
    return 0


async def _demo(url: str | None, data_folder: Path, prompt: str, console: Console) -> None:
    async with _suite(url, data_folder, console) as found:
        picture = await Story(found, prompt, console).play()
    console.print(f"\nThe picture is in [bold]{escape(str(picture))}[/bold]", soft_wrap=True)


@asynccontextmanager
async def _suite(url: str | None, data_folder: Path, console: Console) -> AsyncIterator[str]:
    """The address of the suite that was named, that runs on the data folder, or a temporary one."""
    if url is not None:
        yield url.rstrip("/")
        return
    processes = StateFile(data_folder).read() or []
    gateway = next((process for process in processes if process.name == "gateway"), None)
    if gateway is not None:
        yield f"http://{gateway.address}"
        return
    with tempfile.TemporaryDirectory(prefix="gesso-demo-") as folder:
        wanted = Wanted(Path(folder), port=free_port(), workers=1, gateways=1, presences=1)
        with console.status("starting a temporary suite") as status:
            async with running(wanted, os.environ, progress=lambda _what: None) as suite:
                status.stop()
                console.print(f"A temporary suite is up at {suite.url}")
                yield suite.url
