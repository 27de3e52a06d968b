"""The presence process."""

import sys

from servicekit.process import run
from services.presence.server import serving
from services.presence.settings import Settings

if __name__ == "__main__":
    sys.exit(run("presence", "presence", Settings, serving))
