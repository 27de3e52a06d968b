"""Makes opaque ids with a type prefix."""

import secrets
import string

_ALPHABET = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """A fresh id such as `rs_` and 22 letters or digits (131 random bits)."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(22))}"
