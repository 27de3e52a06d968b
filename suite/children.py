"""Starts child processes that end when we do, even if we are killed."""

import ctypes
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


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
