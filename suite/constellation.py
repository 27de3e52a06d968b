"""Which processes make a suite on one machine, where they listen, and what they are told."""

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servicekit.settings import WrongSettings, load
from services.generation.settings import ControllerSettings
from suite import roles
from suite.roles import RoleKind
from suite.supervisor import Role

HOST = "127.0.0.1"

_SERVERS = (roles.CANVAS, roles.TASKS, roles.GENERATION, roles.PRESENCE)


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    So many `workers` of each kind; None is one for texts, and for pictures as many as there is
    work.
    """

    data_folder: Path
    port: int
    workers: int | None
    gateways: int
    presences: int


@dataclass(frozen=True)
class Stores:
    """Where the stores are."""

    database_url: str
    redis_url: str


@dataclass(frozen=True)
class Constellation:
    """The processes, in the order in which they start; the gateways come last.

    The first `workers_at_once` of the `workers` start with the suite, the others as the
    controllers have them started.
    """

    services: list[Role]
    workers: list[Role]
    workers_at_once: int
    controllers: list[Role]
    gateways: list[Role]

    @property
    def url(self) -> str:
        """Where a browser finds the suite."""
        return f"http://{self.gateways[0].address}"


def constellation(
    wanted: Wanted, stores: Stores, environ: Mapping[str, str], *, control: Path
) -> Constellation:
    """The suite as it was asked for.

    `control` is the socket by which the controllers have workers started and stopped.
    Raises `WrongSettings` for settings in `environ` that one of the processes could not start
    with.
    """
    counts = {roles.PRESENCE: wanted.presences}
    ports = {kind: [free_port() for _ in range(counts.get(kind, 1))] for kind in _SERVERS}
    gateway_ports = range(wanted.port, wanted.port + wanted.gateways)
    shared = {
        **environ,
        "GESSO_INTERNAL_TOKENS": environ.get("GESSO_INTERNAL_TOKENS")
        or _internal_token(wanted.data_folder),
        "GESSO_DATABASE_URL": stores.database_url,
        "GESSO_REDIS_URL": stores.redis_url,
        "GESSO_OBJECTS_URL": environ.get("GESSO_OBJECTS_URL")
        or (wanted.data_folder / "objects").as_uri(),
        **{f"GESSO_{kind.name.upper()}_ADDRESS": _address(ports[kind]) for kind in _SERVERS},
    }
    servers = [
        _role(kind, _name(kind, number), port, shared)
        for kind in _SERVERS
        for number, port in enumerate(ports[kind], start=1)
    ]
    scaling = _scaling(wanted, shared, control)
    shared.setdefault("GESSO_GATEWAY_ALLOWED_ORIGINS", ",".join(_origins(gateway_ports)))
    gateways = [
        _role(
            roles.GATEWAY,
            _name(roles.GATEWAY, number),
            port,
            {**shared, "GESSO_GATEWAY_METRICS_LISTEN": f"{HOST}:{free_port()}"},
        )
        for number, port in enumerate(gateway_ports, start=1)
    ]
    return Constellation(
        services=[
            *servers,
            *_workers(roles.TASKS_WORKER, 1 if wanted.workers is None else wanted.workers, shared),
        ],
        workers=scaling.workers,
        workers_at_once=scaling.at_once,
        controllers=scaling.controllers,
        gateways=gateways,
    )


@dataclass(frozen=True)
class _Scaling:
    workers: list[Role]
    at_once: int
    controllers: list[Role]


def _scaling(wanted: Wanted, shared: Mapping[str, str], control: Path) -> _Scaling:
    """The workers of generation, and who starts and stops them: nobody if their number is said.

    None of either where the service carries jobs out itself, unless workers are asked for.
    """
    if wanted.workers is not None:
        workers = _workers(roles.GENERATION_WORKER, wanted.workers, shared)
        return _Scaling(workers, at_once=wanted.workers, controllers=[])
    if shared.get("GESSO_GENERATION_MODE") == "inline":
        return _Scaling(workers=[], at_once=0, controllers=[])
    kind = roles.GENERATION_CONTROLLER
    environment = {**shared, "GESSO_GENERATION_CONTROLLER_SUPERVISOR": str(control)}
    limits = load(ControllerSettings, kind.name, environment).limits()
    return _Scaling(
        workers=_workers(roles.GENERATION_WORKER, limits.max_workers, shared),
        at_once=limits.min_workers,
        controllers=[_role(kind, kind.name, None, environment)],
    )


def _workers(kind: RoleKind, count: int, shared: Mapping[str, str]) -> list[Role]:
    return [_role(kind, f"{kind.name}-{number}", None, shared) for number in range(1, count + 1)]


def why(error: OSError) -> str:
    """What the system says of an error, without what others added to it."""
    return os.strerror(error.errno) if error.errno else str(error)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """Raises `WrongSettings` if somebody listens on the port."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise WrongSettings(
            [f"port {port} cannot be used: {why(error)}; name another one with --port"]
        ) from None


def _role(kind: RoleKind, name: str, port: int | None, shared: Mapping[str, str]) -> Role:
    environment = dict(shared)
    prefix = f"GESSO_{kind.name.replace('-', '_').upper()}"
    if port is not None:
        environment[f"{prefix}_LISTEN"] = f"{HOST}:{port}"
    settings = load(kind.settings(), kind.name, environment)
    return Role(
        name=name,
        command=kind.command(),
        address=f"{HOST}:{port}" if port is not None else "",
        environment=environment,
        drain_seconds=settings.drain_seconds,
    )


def _name(kind: RoleKind, number: int) -> str:
    return kind.name if number == 1 else f"{kind.name}-{number}"


def _address(ports: list[int]) -> str:
    """Where a service is, as gRPC takes it: several instances are one target."""
    listening = ",".join(f"{HOST}:{port}" for port in ports)
    return listening if len(ports) == 1 else f"ipv4:{listening}"


def _origins(ports: range) -> list[str]:
    return [f"http://{host}:{port}" for port in ports for host in (HOST, "localhost")]


def _internal_token(data_folder: Path) -> str:
    """The secret that the processes of this data folder share, made once."""
    path = data_folder / "internal-token"
    if not path.exists():
        # All at once: a kill in between leaves none, not an empty one.
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_hex(32))
        fresh.replace(path)
    return path.read_text()
