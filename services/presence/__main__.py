"""The presence process."""

import sys
from functools import partial

from servicekit.process import chosen, run
from services.presence.server import serving
from services.presence.settings import Settings

if __name__ == "__main__":
    sys.exit(
        chosen(
            "services.presence",
            sys.argv[1:],
            serve=partial(run, "presence", Settings, serving),
        )
    )
