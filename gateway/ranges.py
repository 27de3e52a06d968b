"""Which bytes of a file a request asks for (RFC 9110, one range)."""

import re

from gateway.failures import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def wanted(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """The first byte and the one after the last that are wanted, None for the whole file.

    What is not one range of bytes is not understood, which means the whole file. Raises
    `RangeNotSatisfiable`.
    """
    found = _RANGE.fullmatch(header or "")
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if first == "":
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        start, end = int(first), min(int(last or size_bytes), size_bytes - 1) + 1
        if last and int(last) < int(first):
            return None
    if start >= size_bytes or start >= end:
        raise RangeNotSatisfiable(size_bytes)
    return start, end
