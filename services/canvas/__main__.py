"""The canvas process."""

import sys
from functools import partial

from servicekit.process import chosen, run
from services.canvas.server import serving
from services.canvas.settings import Settings

if __name__ == "__main__":
    sys.exit(
        chosen(
            "services.canvas",
            sys.argv[1:],
            serve=partial(run, "canvas", Settings, serving),
        )
    )
