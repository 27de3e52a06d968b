"""The gateway process."""

import sys
from functools import partial

from gateway.app import serving
from gateway.settings import Settings
from servicekit.process import chosen, run

if __name__ == "__main__":
    sys.exit(
        chosen(
            "gateway",
            sys.argv[1:],
            serve=partial(run, "gateway", Settings, serving),
        )
    )
