"""The processes of the tasks service: the server and its workers."""

import sys

from servicekit.process import run
from services.tasks.server import serving
from services.tasks.settings import Settings, WorkerSettings
from services.tasks.worker import running

USAGE = "usage: python -m services.tasks [serve | worker]\n"


def main(arguments: list[str]) -> int:
    """Runs one role until it is told to stop, and returns the exit code."""
    match arguments:
        case [] | ["serve"]:
            return run("tasks", "tasks", Settings, serving)
        case ["worker"]:
            return run("tasks-worker", "tasks-worker", WorkerSettings, running)
        case _:
            sys.stderr.write(USAGE)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
