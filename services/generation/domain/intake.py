"""Decides, one after another, which jobs that an account asks for are stored (GN2 to GN4, GN27)."""

from dataclasses import dataclass, field
from uuid import uuid4

from servicekit.errors import IdempotencyKeyReused
from services.generation.domain.failures import BacklogFull, InsufficientBalance
from services.generation.domain.jobs import Draft


@dataclass(frozen=True)
class Known:
    """A job that was stored before under a dedupe key: its key, and the digest of its request."""

    key: int
    digest: bytes


@dataclass(frozen=True)
class Order:
    """A job to be stored: under which id, and whether it has a turn or waits for one."""

    job_id: str
    draft: Draft
    is_pending: bool

    @property
    def digest(self) -> bytes:
        """Of its request."""
        return self.draft.digest


@dataclass
class Intake:
    """An account, locked, while jobs are asked for.

    `waiting` jobs of it has nobody claimed, `under_way` of its turns are taken; `known` are the
    jobs by dedupe key.
    """

    balance_micros: int
    waiting: int
    under_way: int
    backlog_limit: int
    turns: int
    known: dict[str, Known | Order]
    orders: list[Order] = field(default_factory=list)

    def take(self, draft: Draft) -> Known | Order:
        """The job of a dedupe key, to be stored if there is none yet.

        Raises `IdempotencyKeyReused`, `BacklogFull` or `InsufficientBalance`.
        """
        known = self.known.get(draft.dedupe_key)
        if known is not None:
            if known.digest != draft.digest:
                raise IdempotencyKeyReused
            return known
        if self.waiting >= self.backlog_limit:
            raise BacklogFull(self.backlog_limit)
        if self.balance_micros < draft.price_micros:
            raise InsufficientBalance(
                balance_micros=self.balance_micros, price_micros=draft.price_micros
            )
        order = Order(f"extgen-{uuid4()}", draft, is_pending=self.under_way < self.turns)
        self.balance_micros -= draft.price_micros
        self.waiting += 1
        self.under_way += order.is_pending
        self.known[draft.dedupe_key] = order
        self.orders.append(order)
        return order
