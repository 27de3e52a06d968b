"""The processes of the tasks service: the server and its workers."""

import sys
from functools import partial

from servicekit.process import chosen, run
from services.tasks.server import serving
from services.tasks.settings import Settings, WorkerSettings
from services.tasks.worker import running

if __name__ == "__main__":
    sys.exit(
        chosen(
            "services.tasks",
            sys.argv[1:],
            serve=partial(run, "tasks", Settings, serving),
            worker=partial(run, "tasks-worker", WorkerSettings, running),
        )
    )
