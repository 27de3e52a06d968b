"""The processes of the generation service: the server, its workers, and who has them run."""

import sys
from functools import partial

from servicekit.process import chosen, run
from services.generation import controller, worker
from services.generation.server import serving
from services.generation.settings import ControllerSettings, Settings, WorkerSettings

if __name__ == "__main__":
    sys.exit(
        chosen(
            "services.generation",
            sys.argv[1:],
            serve=partial(run, "generation", Settings, serving),
            worker=partial(run, "generation-worker", WorkerSettings, worker.running),
            controller=partial(
                run, "generation-controller", ControllerSettings, controller.running
            ),
        )
    )
