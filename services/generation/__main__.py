"""The processes of the generation service: the server and its workers."""

import sys

from servicekit.process import WRONG_SETTINGS, run
from services.generation.server import serving
from services.generation.settings import Settings, WorkerSettings
from services.generation.worker import running

USAGE = "usage: python -m services.generation [serve | worker]\n"


def main(arguments: list[str]) -> int:
    """Runs one role until it is told to stop, and returns the exit code."""
    match arguments:
        case [] | ["serve"]:
            return run("generation", "generation", Settings, serving)
        case ["worker"]:
            return run("generation-worker", "generation-worker", WorkerSettings, running)
        case _:
            sys.stderr.write(USAGE)
            return WRONG_SETTINGS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
