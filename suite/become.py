"""Becomes another program, as a child that ends with its parent; run as a script of its own.

`python become.py PARENT SIGNAL USER GROUP PROGRAM [ARGUMENT…]`: numbers, USER and GROUP -1 to stay
who we are. Here and not in a `preexec_fn`, which runs in a copy of a process with threads, of
whose locks and threads it has but some.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def become(parent: int, number: int, user: int, group: int, command: list[str]) -> None:
    """Does not return. Ends if the parent is gone already."""
    # What is kept here is not for other users of the machine.
    os.umask(0o077)
    if user >= 0:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    if sys.platform == "linux":
        # After the user, whose change would undo it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    parent, number, user, group = map(int, sys.argv[1:5])
    become(parent, number, user, group, sys.argv[5:])
