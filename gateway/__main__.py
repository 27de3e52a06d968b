"""The gateway process."""

import sys

from gateway.app import serving
from gateway.settings import Settings
from servicekit.process import run

if __name__ == "__main__":
    sys.exit(run("gateway", "gateway", Settings, serving))
