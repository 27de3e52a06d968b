"""The canvas process."""

import sys

from servicekit.process import run
from services.canvas.server import serving
from services.canvas.settings import Settings

if __name__ == "__main__":
    sys.exit(run("canvas", "canvas", Settings, serving))
