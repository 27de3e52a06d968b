"""Starts child processes that end when we do, even if we are killed."""

import os
import pwd
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_BECOME = Path(__file__).with_name("become.py")


def child_command(
    command: Sequence[str], *, signalled: signal.Signals, user: str | None = None
) -> list[str]:
    """What starts a command as a child that is signalled when the thread that started it is gone.

    It runs as `user`, which only root can have, without our own groups; None stays who we are.
    Where the kernel does not tell of the end of a parent, an orderly stop still ends the children.
    """
    entry = pwd.getpwnam(user) if user is not None else None
    ids = (entry.pw_uid, entry.pw_gid) if entry else (-1, -1)
    numbers = map(str, (os.getpid(), signalled.value, *ids))
    return [sys.executable, "-I", "-S", str(_BECOME), *numbers, *command]
