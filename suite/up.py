"""Brings the whole suite up on one machine, and down again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from servicekit.errors import Unavailable
from servicekit.migrations import migrate
from servicekit.settings import WrongSettings
from suite import postgres, valkey
from suite.constellation import HOST, Stores, Wanted, check_port, constellation, free_port, why
from suite.control import controlled
from suite.postgres import NoDatabase
from suite.schemas import SCHEMAS
from suite.state import AlreadyRunning, ProcessState, StateFile
from suite.supervisor import DoesNotStart, Role, Supervisor


class CannotStart(Exception):  # noqa: N818 - facts are named without a suffix
    """The suite cannot start; one line that says why, and what to do."""


@dataclass(frozen=True)
class Running:
    """A suite that is up."""

    url: str
    supervisor: Supervisor

    def processes(self) -> list[ProcessState]:
        """What runs now."""
        return self.supervisor.processes()


@asynccontextmanager
async def running(
    wanted: Wanted, environ: Mapping[str, str], *, progress: Callable[[str], None]
) -> AsyncIterator[Running]:
    """The suite, up inside the block; nothing of it is left after.

    `progress` is told what is being done, a few words each. Raises `CannotStart`.
    """
    folder = _prepared(wanted.data_folder)
    state = StateFile(folder)
    try:
        with state.held():
            for port in range(wanted.port, wanted.port + wanted.gateways):
                check_port(port)
            async with _running(wanted, environ, state, progress) as suite:
                yield suite
    except AlreadyRunning as error:
        raise CannotStart(
            f"a suite runs on {folder} already (process {error}): stop it first, or name another "
            "folder with --data-dir"
        ) from None
    except WrongSettings as error:
        raise CannotStart("\n".join(error.lines)) from None
    except (NoDatabase, DoesNotStart, Unavailable) as error:
        raise CannotStart(str(error)) from None


@asynccontextmanager
async def _running(
    wanted: Wanted,
    environ: Mapping[str, str],
    state: StateFile,
    progress: Callable[[str], None],
) -> AsyncIterator[Running]:
    kept, stores = _stores(wanted.data_folder, environ)
    with Supervisor(state, wanted.data_folder / "logs") as supervisor:
        suite = constellation(wanted, stores, environ, control=supervisor.control())
        async with AsyncExitStack() as stack:
            progress("stores")
            await stack.enter_async_context(supervisor.keeping(kept))
            progress("migrations")
            await migrate(stores.database_url, SCHEMAS)
            progress("services")
            # All at once; they end one after another, first those that need the others.
            services = await stack.enter_async_context(supervisor.starting(suite.services))
            workers = await stack.enter_async_context(
                supervisor.offering(suite.workers, at_once=suite.workers_at_once)
            )
            await stack.enter_async_context(controlled(workers, supervisor.control()))
            controllers = await stack.enter_async_context(supervisor.starting(suite.controllers))
            await asyncio.gather(services(), workers.ready(), controllers())
            progress("gateway")
            await stack.enter_async_context(supervisor.keeping(suite.gateways))
            yield Running(suite.url, supervisor)


def _stores(data_folder: Path, environ: Mapping[str, str]) -> tuple[list[Role], Stores]:
    """The stores that we run ourselves, and where all of them are."""
    kept: list[Role] = []
    database_url = environ.get("GESSO_DATABASE_URL")
    if not database_url:
        database = postgres.prepared(data_folder / "postgres")
        database_url = database.url()
        kept.append(
            Role(
                name="postgres",
                command=database.command(),
                address=str(database.sockets),
                environment={"PATH": os.defpath, "LC_ALL": "C"},
                ready=database.ready,
                # After a crash it reads its log first: killed in that, it would begin anew.
                ready_seconds=600,
                user=database.user,
                # Ends sessions and leaves a clean data folder.
                stop_signal=signal.SIGINT,
            )
        )
    redis_url = environ.get("GESSO_REDIS_URL")
    if not redis_url:
        cache_folder = data_folder / "valkey"
        cache_folder.mkdir(mode=0o700, exist_ok=True)
        cache = valkey.Server(cache_folder, free_port())
        redis_url = cache.url()
        kept.append(
            Role(
                name="valkey",
                command=cache.command(),
                address=f"{HOST}:{cache.port}",
                environment={"PATH": os.defpath},
                ready=cache.ready,
            )
        )
    return kept, Stores(database_url=database_url, redis_url=redis_url)


def _prepared(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, FileExistsError) as error:
        raise CannotStart(
            f"the data folder {folder} cannot be made: {why(error)}; name another one with "
            "--data-dir"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotStart(f"the data folder {folder} is not writable; name another --data-dir")
    return folder
