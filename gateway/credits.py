"""The credits that people see, and the micro-credits that the wallet counts in."""

MICROS_PER_CREDIT = 1_000_000


def credits_from_micros(micros: int) -> float | int:
    """Credits as a JSON number with at most six decimals."""
    whole, rest = divmod(micros, MICROS_PER_CREDIT)
    return whole if rest == 0 else micros / MICROS_PER_CREDIT


def micros_from_credits(credits_: int) -> int:
    """Micro-credits of whole credits."""
    return credits_ * MICROS_PER_CREDIT
