"""Small real processes for a supervisor to keep."""

import sys

from suite.supervisor import Role

READY = """
import os, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as word:
    word.connect(os.environ["NOTIFY_SOCKET"])
    word.send(b"READY=1")
"""
WAITS = READY + "import signal; signal.pause()"


def role(name: str, script: str) -> Role:
    """A process that runs a script."""
    return Role(name=name, command=[sys.executable, "-c", script], address="", environment={})
