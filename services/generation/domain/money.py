"""Money of accounts, in micro-credits: the balance is the sum of the ledger at every instant."""

from dataclasses import dataclass
from datetime import datetime

from servicekit.errors import Invalid

# Far above any grant, and far below where sums of 64 bits end.
MAX_GRANT_MICROS = 10**15
MAX_REFERENCE_LENGTH = 200
# What charges and refunds are called; a grant of such a name would stand in their way.
_OURS = ("job:", "refund:")


@dataclass(frozen=True)
class Entry:
    """One line of a ledger; `key` grows with each line."""

    key: int
    entry_id: str
    account_id: str
    kind: str
    delta_micros: int
    balance_after_micros: int
    reference: str
    created_at: datetime


@dataclass(frozen=True)
class Grant:
    """Credits for an account, given once for each reference."""

    account_id: str
    amount_micros: int
    reference: str

    def __post_init__(self) -> None:
        if not 0 < self.amount_micros <= MAX_GRANT_MICROS:
            raise Invalid(
                f"An amount is 1 to {MAX_GRANT_MICROS} micro-credits.", path="amountMicros"
            )
        if not 0 < len(self.reference) <= MAX_REFERENCE_LENGTH or self.reference.startswith(_OURS):
            raise Invalid(
                f"A reference has 1 to {MAX_REFERENCE_LENGTH} characters, and begins with none of "
                f"{', '.join(_OURS)}.",
                path="reference",
            )

    def is_that_of(self, entry: Entry) -> bool:
        """Whether the entry is what this grant gave."""
        return (entry.kind, entry.account_id, entry.delta_micros) == (
            "grant",
            self.account_id,
            self.amount_micros,
        )
