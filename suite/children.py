"""Starts child processes that end when we do, even if we are killed."""

import ctypes
import pwd
import signal
import sys
from collections.abc import Callable
from typing import TypedDict

_PR_SET_PDEATHSIG = 1


class Credentials(TypedDict, total=False):
    """Whom a child runs as, in the words of `subprocess.Popen`."""

    user: int
    group: int
    extra_groups: list[int]


def credentials_of(user: str | None) -> Credentials:
    """The ids of a user and its group, without our own groups; empty for None: as we are."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def dies_with_us(number: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` that has the child signalled when the thread that started it is gone.

    None where the kernel cannot do that; there an orderly stop still ends the children.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)

    return ask
