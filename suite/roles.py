"""The roles of the suite: which there are, and how each is run."""

import sys
from dataclasses import dataclass
from importlib import import_module

from servicekit.settings import ServiceSettings


@dataclass(frozen=True)
class RoleKind:
    """A kind of process: `python -m MODULE ARGUMENTS`, with the settings of `service`."""

    name: str
    module: str
    arguments: tuple[str, ...]
    service: str
    settings_class: str = "Settings"

    def command(self) -> list[str]:
        """The command line of such a process. -P: the current folder is not for importing."""
        return [sys.executable, "-P", "-m", self.module, *self.arguments]

    def settings(self) -> type[ServiceSettings]:
        """The class of its settings."""
        found: type[ServiceSettings] = getattr(
            import_module(f"{self.module}.settings"), self.settings_class
        )
        return found


CANVAS = RoleKind("canvas", "services.canvas", ("serve",), "canvas")
TASKS = RoleKind("tasks", "services.tasks", ("serve",), "tasks")
TASKS_WORKER = RoleKind(
    "tasks-worker", "services.tasks", ("worker",), "tasks-worker", "WorkerSettings"
)
GENERATION = RoleKind("generation", "services.generation", ("serve",), "generation")
GENERATION_WORKER = RoleKind(
    "generation-worker",
    "services.generation",
    ("worker",),
    "generation-worker",
    "WorkerSettings",
)
PRESENCE = RoleKind("presence", "services.presence", ("serve",), "presence")
GATEWAY = RoleKind("gateway", "gateway", ("serve",), "gateway")

KINDS = (CANVAS, TASKS, TASKS_WORKER, GENERATION, GENERATION_WORKER, PRESENCE, GATEWAY)
