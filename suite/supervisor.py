"""Keeps processes running: starts them, restarts what dies, stops them in order."""

import asyncio
import logging
import logging.handlers
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from suite.children import child_command
from suite.state import ProcessState, StateFile

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# Who ran as long as this was well: the next pause is the first one again.
WELL_AFTER_SECONDS = 10.0
GIVE_UP_AFTER = 3
KILL_AFTER_SECONDS = 20.0

LOG_BYTES = 8 * 1024 * 1024
LOG_FILES = 3

_POLL_SECONDS = 0.03


class DoesNotStart(Exception):  # noqa: N818 - facts are named without a suffix
    """A process ended before it was ready, again and again."""

    def __init__(self, name: str, last_line: str, log: Path) -> None:
        super().__init__(f"{name} does not start: {last_line or 'no word from it'} (see {log})")


@dataclass(frozen=True)
class Role:
    """One process to keep running.

    `ready` asks whether it is; without it the process says so itself (sd_notify). One that is not
    within `ready_seconds` is killed and started again. Told to stop, it has `drain_seconds` for
    what is in flight, and some more for the rest, before it is killed.
    """

    name: str
    command: Sequence[str]
    address: str
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], Awaitable[bool]] | None = None
    ready_seconds: float = 30.0
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    drain_seconds: float = 0.0


class Offered:
    """Processes that are started and stopped by name, and kept running in between."""

    def __init__(
        self, roles: Sequence[Role], made: Callable[[Role], "_Kept"], *, at_once: int
    ) -> None:
        self._roles = {role.name: role for role in roles}
        self._made = made
        self._kept: dict[str, _Kept] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for role in roles[:at_once]:
            self.start(role.name)
        # Waits until those are ready, or raises `DoesNotStart`.
        self.ready = partial(_all_ready, list(self._kept.values()), list(self._tasks.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._roles

    def state(self, name: str) -> str:
        """`active`, `deactivating` while it ends, or `inactive`."""
        kept = self._kept.get(name)
        if kept is None:
            return "inactive"
        return "deactivating" if kept.is_stopping else "active"

    def start(self, name: str) -> None:
        """Keeps a process running from now on. One that is ending is not started anew."""
        if name in self._kept:
            return
        kept = self._kept[name] = self._made(self._roles[name])
        task = self._tasks[name] = asyncio.create_task(kept.keep())
        task.add_done_callback(lambda _: self._ended(name))

    def stop(self, name: str) -> None:
        """Has a process end, if it runs."""
        if name in self._kept:
            self._kept[name].stop()

    async def ended(self) -> None:
        """Has all of them end, and waits for it."""
        for kept in self._kept.values():
            kept.stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def states(self) -> list[ProcessState]:
        """What runs now, in the order of the roles."""
        return [self._kept[name].state() for name in self._roles if name in self._kept]

    def _ended(self, name: str) -> None:
        task, kept = self._tasks.pop(name), self._kept.pop(name)
        kept.close()
        kept.changed()
        # One that failed said so in its log, and can be started again.
        if not task.cancelled():
            task.exception()


class Supervisor:
    """The processes of one data folder; a context manager, left when none is kept any more."""

    def __init__(self, state: StateFile, logs: Path) -> None:
        self._state = state
        self._logs = logs
        self._groups: list[Callable[[], list[ProcessState]]] = []
        self._sockets = tempfile.TemporaryDirectory(prefix="gesso-")

    @asynccontextmanager
    async def keeping(self, roles: Sequence[Role]) -> AsyncIterator[None]:
        """Keeps processes running inside the block, which is entered when all are ready.

        Raises `DoesNotStart` if one cannot be started. Leaving the block stops them, all at once.
        """
        async with self.starting(roles) as ready:
            await ready()
            yield

    @asynccontextmanager
    async def starting(self, roles: Sequence[Role]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Keeps processes running inside the block, and yields what waits until all are ready."""
        kept = [self._made(role) for role in roles]
        self._groups.append(lambda: [each.state() for each in kept])
        tasks = [asyncio.create_task(each.keep()) for each in kept]
        try:
            yield partial(_all_ready, kept, tasks)
        finally:
            for each in kept:
                each.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in kept:
                each.close()

    @asynccontextmanager
    async def offering(self, roles: Sequence[Role], *, at_once: int) -> AsyncIterator[Offered]:
        """Has processes that are started and stopped inside the block; the first ones `at_once`.

        Leaving the block stops those that run, all at once.
        """
        offered = Offered(roles, self._made, at_once=at_once)
        self._groups.append(offered.states)
        try:
            yield offered
        finally:
            await offered.ended()

    def control(self) -> Path:
        """Where a socket can be by which others start and stop processes."""
        return Path(self._sockets.name) / "control"

    def processes(self) -> list[ProcessState]:
        """What runs now."""
        return [state for states in self._groups for state in states()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._sockets.cleanup()

    def _made(self, role: Role) -> "_Kept":
        return _Kept(role, self._logs, Path(self._sockets.name), self._changed)

    def _changed(self) -> None:
        # It is for who looks only, and processes are kept on a full disk too.
        with suppress(OSError):
            self._state.write(self.processes())


async def _all_ready(kept: list["_Kept"], tasks: list[asyncio.Task[None]]) -> None:
    """Returns when all are ready; raises what one of the tasks raised."""
    ready = asyncio.create_task(_each_ready(kept))
    await asyncio.wait({ready, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        ready.cancel()
        next(task for task in tasks if task.done()).result()


async def _each_ready(kept: list["_Kept"]) -> None:
    for each in kept:
        await each.is_ready.wait()


class _Kept:
    """One process that is kept running."""

    def __init__(self, role: Role, logs: Path, sockets: Path, changed: Callable[[], None]) -> None:
        self.is_ready = asyncio.Event()
        self._role = role
        self._log = _LogFile(role.name, logs)
        self._socket = sockets / f"{role.name}.socket"
        self.changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._state = "starting"
        self._restarts = 0
        self._stopping = asyncio.Event()

    def state(self) -> ProcessState:
        return ProcessState(
            name=self._role.name,
            pid=self._process.pid if self._process and self._process.returncode is None else None,
            address=self._role.address,
            state=self._state,
            restarts=self._restarts,
        )

    @property
    def is_stopping(self) -> bool:
        """Whether it is to end."""
        return self._stopping.is_set()

    def close(self) -> None:
        self._log.close()

    async def keep(self) -> None:
        """Runs the process until `stop`, again and again. What it raises is in the log too."""
        try:
            await self._keep()
        except DoesNotStart:
            raise
        except Exception:
            self._log.line(traceback.format_exc())
            raise
        finally:
            self._enter("stopped")

    async def _keep(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                was_ready = await self._run()
            except OSError as error:
                was_ready = False
                self._log.last_line = f"{self._role.name} cannot be run: {error}"
                self._log.line(self._log.last_line)
            if self._stopping.is_set():
                break
            failures = 0 if was_ready else failures + 1
            if failures == GIVE_UP_AFTER and not self.is_ready.is_set():
                raise DoesNotStart(self._role.name, self._log.last_line, self._log.path)
            if time.monotonic() - started > WELL_AFTER_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._restarts += 1
            self._enter("waiting")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def stop(self) -> None:
        """Has the process end; `keep` returns when it has."""
        self._stopping.set()

    async def _run(self) -> bool:
        """One life of the process; whether it was ready in it."""
        self._socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as word:
            word.setblocking(False)
            word.bind(str(self._socket))
            self._process = await asyncio.create_subprocess_exec(
                *child_command(
                    self._role.command, signalled=self._role.stop_signal, user=self._role.user
                ),
                env={**self._role.environment, "NOTIFY_SOCKET": str(self._socket)},
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # A Ctrl-C at the terminal is for us alone; we stop them in order.
                start_new_session=True,
            )
            self._enter("starting")
            process = self._process
            reading = asyncio.create_task(self._log.follow(process.stdout))
            ending = asyncio.create_task(self._end_when_told(process))
            became_ready = asyncio.create_task(self._until_ready(word))
            ended = asyncio.create_task(process.wait())
            try:
                await asyncio.wait((became_ready, ended), return_when=asyncio.FIRST_COMPLETED)
                was_ready = became_ready.done() and became_ready.result()
                if was_ready:
                    self.is_ready.set()
                    self._enter("running")
                elif not ended.done():
                    self._log.line(f"{self._role.name} was not ready in time and is killed")
                    process.kill()
                code = await ended
            finally:
                became_ready.cancel()
                ending.cancel()
                # Nobody else ends it any more.
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            await reading
        if not self._stopping.is_set():
            self._log.line(f"{self._role.name} ended with {code}")
        return was_ready

    async def _end_when_told(self, process: asyncio.subprocess.Process) -> None:
        """Signals the process once it shall stop, and kills it if it does not."""
        await self._stopping.wait()
        with suppress(ProcessLookupError):
            process.send_signal(self._role.stop_signal)
            await asyncio.sleep(self._role.drain_seconds + KILL_AFTER_SECONDS)
            self._log.line(f"{self._role.name} did not end in time and is killed")
            process.kill()

    async def _until_ready(self, word: socket.socket) -> bool:
        """Whether it became ready in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._role.ready_seconds):
                if self._role.ready is None:
                    await loop.sock_recv(word, 4096)
                else:
                    # The stores are not ours to have them say when they are ready.
                    while not await self._role.ready():  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return False
        return True

    def _enter(self, state: str) -> None:
        self._state = state
        self.changed()


class _LogFile:
    """What a process says, in files of bounded size."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{name}.log"
        self.last_line = ""
        self._handler = logging.handlers.RotatingFileHandler(
            self.path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True
        )

    async def follow(self, stream: asyncio.StreamReader | None) -> None:
        """Keeps the lines of a stream until it ends."""
        assert stream is not None
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # a line longer than the reader's buffer, which is dropped
                continue
            if not raw:
                return
            text = raw.decode(errors="replace").rstrip("\n")
            self.last_line = text or self.last_line
            self.line(text)

    def close(self) -> None:
        self._handler.close()

    def line(self, text: str) -> None:
        """Keeps one line."""
        self._handler.emit(logging.makeLogRecord({"msg": text}))
