"""Starts and stops the instances of the worker, numbered from 1: systemd's, or those of `gesso up`.

Who runs them restarts those that die, and keeps them when the controller does.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from servicekit.errors import Unavailable
from servicekit.telemetry import logger

COMMAND_SECONDS = 10.0
# What they are called by the supervisor of `gesso up`.
SUPERVISED = "generation-worker-{}"
MAX_LINE_BYTES = 64 * 1024

# They run, or begin to. Those that end do not count any more.
_ACTIVE = {"active", "activating", "reloading", "refreshing"}
_STATES = _ACTIVE | {"deactivating", "inactive", "failed", "maintenance"}


class Instances(Protocol):
    """The instances of the worker. Each call raises `Unavailable` if nobody can do it now."""

    async def active(self) -> set[int]:
        """The numbers of those that run."""

    async def start(self, number: int) -> None:
        """Has one run from now on."""

    async def stop(self, number: int) -> None:
        """Has one end its jobs, and then itself. Does not wait for it."""


class Units:
    """Units of a systemd template, as far as `limit`."""

    def __init__(self, template: str, *, limit: int, dry_run: bool) -> None:
        self._units = {number: template.format(number) for number in range(1, limit + 1)}
        self._dry_run = dry_run
        self._log = logger("generation.instances")

    async def active(self) -> set[int]:
        """The numbers of the units that run."""
        _, words, why = await _run("systemctl", "is-active", *self._units.values())
        return _active(self._units, words.split(), why)

    async def start(self, number: int) -> None:
        """Has systemd start a unit."""
        await self._do("start", number)

    async def stop(self, number: int) -> None:
        """Has systemd stop a unit."""
        await self._do("stop", number)

    async def _do(self, verb: str, number: int) -> None:
        # A unit that drains takes as long as its jobs: nobody waits for it here.
        command = ["systemctl", "--no-block", verb, self._units[number]]
        self._log.info("command", command=" ".join(command), dry_run=self._dry_run)
        if self._dry_run:
            return
        code, _, why = await _run(*command)
        if code != 0:
            raise Unavailable(f"{' '.join(command)}: {why.strip() or f'exit code {code}'}")


class Supervised:
    """Processes of a `gesso up`, as far as `limit`, by the socket of its supervisor."""

    def __init__(self, socket: str, *, limit: int, dry_run: bool) -> None:
        self._socket = socket
        self._names = {number: SUPERVISED.format(number) for number in range(1, limit + 1)}
        self._dry_run = dry_run
        self._log = logger("generation.instances")

    async def active(self) -> set[int]:
        """The numbers of the processes that are kept running."""
        answer = await self._asked("is-active", *self._names.values())
        return _active(self._names, answer.split(), answer)

    async def start(self, number: int) -> None:
        """Has the supervisor start a process."""
        await self._do("start", number)

    async def stop(self, number: int) -> None:
        """Has the supervisor stop a process."""
        await self._do("stop", number)

    async def _do(self, verb: str, number: int) -> None:
        command = [verb, self._names[number]]
        self._log.info("command", command=" ".join(command), dry_run=self._dry_run)
        if not self._dry_run:
            await self._asked(*command)

    async def _asked(self, *words: str) -> str:
        """What the supervisor answers."""
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                reader, writer = await asyncio.open_unix_connection(
                    self._socket, limit=MAX_LINE_BYTES
                )
                try:
                    writer.write(f"{' '.join(words)}\n".encode())
                    await writer.drain()
                    answer = (await reader.readline()).decode().strip()
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError) as error:
            raise Unavailable(f"The supervisor does not answer: {error!r}.") from None
        if not answer or answer.startswith("no: "):
            raise Unavailable(f"The supervisor refuses: {answer.removeprefix('no: ')}.")
        return answer


def _active(names: dict[int, str], words: Sequence[str], said: str) -> set[int]:
    """The numbers of those that run, by a word for each."""
    if len(words) != len(names) or not _STATES.issuperset(words):
        raise Unavailable(f"It is not told which workers run: {said.strip() or ' '.join(words)}")
    return {number for number, word in zip(names, words, strict=True) if word in _ACTIVE}


async def _run(*command: str) -> tuple[int, str, str]:
    """The exit code of a command, and what it said on stdout and stderr."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}.") from None
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            said, why = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"{' '.join(command)} does not end.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode(errors="replace"), why.decode(errors="replace")
