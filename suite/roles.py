"""The roles of the suite: which there are, and how each is run."""

import sys
from dataclasses import dataclass
from importlib import import_module

from servicekit.settings import ServiceSettings


@dataclass(frozen=True)
class RoleKind:
    """A kind of process, `python -m MODULE VERB`; its settings are called by its name."""

    name: str
    module: str
    verb: str = "serve"
    settings_class: str = "Settings"

    def command(self) -> list[str]:
        """The command line of such a process. -P: the current folder is not for importing."""
        return [sys.executable, "-P", "-m", self.module, self.verb]

    def settings(self) -> type[ServiceSettings]:
        """The class of its settings."""
        found: type[ServiceSettings] = getattr(
            import_module(f"{self.module}.settings"), self.settings_class
        )
        return found


CANVAS = RoleKind("canvas", "services.canvas")
TASKS = RoleKind("tasks", "services.tasks")
TASKS_WORKER = RoleKind("tasks-worker", "services.tasks", "worker", "WorkerSettings")
GENERATION = RoleKind("generation", "services.generation")
GENERATION_WORKER = RoleKind("generation-worker", "services.generation", "worker", "WorkerSettings")
GENERATION_CONTROLLER = RoleKind(
    "generation-controller", "services.generation", "controller", "ControllerSettings"
)
PRESENCE = RoleKind("presence", "services.presence")
GATEWAY = RoleKind("gateway", "gateway")

KINDS = (
    CANVAS,
    TASKS,
    TASKS_WORKER,
    GENERATION,
    GENERATION_WORKER,
    GENERATION_CONTROLLER,
    PRESENCE,
    GATEWAY,
)
