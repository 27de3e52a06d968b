"""The processes of the generation service: the server and its workers."""

import sys
from functools import partial

from servicekit.process import chosen, run
from services.generation.server import serving
from services.generation.settings import Settings, WorkerSettings
from services.generation.worker import running

if __name__ == "__main__":
    sys.exit(
        chosen(
            "services.generation",
            sys.argv[1:],
            serve=partial(run, "generation", Settings, serving),
            worker=partial(run, "generation-worker", WorkerSettings, running),
        )
    )
