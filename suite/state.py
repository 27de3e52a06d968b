"""What runs on a data folder: written by the supervisor, read by everybody else."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "state.json"
_LOCK = "lock"


class AlreadyRunning(Exception):  # noqa: N818 - facts are named without a suffix
    """Another suite runs on the data folder."""


@dataclass(frozen=True)
class ProcessState:
    """One process as the supervisor sees it. `state`: starting, running, waiting or stopped."""

    name: str
    pid: int | None
    address: str
    state: str
    restarts: int


class StateFile:
    """The state of the suite on one data folder."""

    def __init__(self, data_folder: Path) -> None:
        self._folder = data_folder / "run"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs on the folder inside the block. Raises `AlreadyRunning`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise AlreadyRunning(lock.read().strip()) from None
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            try:
                yield
            finally:
                (self._folder / _FILE).unlink(missing_ok=True)

    def write(self, processes: list[ProcessState]) -> None:
        """Says what runs now, all at once."""
        fresh = self._folder / f"{_FILE}.new"
        fresh.write_text(json.dumps([asdict(process) for process in processes]))
        fresh.replace(self._folder / _FILE)

    def read(self) -> list[ProcessState] | None:
        """What runs, None if nothing does."""
        if not self._is_held():
            return None
        try:
            found = json.loads((self._folder / _FILE).read_text())
        except FileNotFoundError:
            return []
        return [ProcessState(**process) for process in found]

    def _is_held(self) -> bool:
        try:
            with (self._folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False
