"""Decides, one after another, which jobs that an account asks for are stored (GN2 to GN4, GN27)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servicekit.errors import Failure, IdempotencyKeyReused
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


@dataclass(frozen=True)
class Gathered:
    """How many jobs of an account nobody has claimed, how many of its turns are taken, and its jobs
    that were stored before under dedupe keys."""

    waiting: int
    under_way: int
    known: Mapping[str, Known]


@dataclass(frozen=True)
class Limits:
    """How many jobs of an account may wait, and how many turns it has."""

    backlog: int
    turns: int


def taken(
    drafts: Sequence[Draft],
    job_ids: Sequence[str],
    found: Gathered,
    balance_micros: int,
    limits: Limits,
) -> list[Known | Order | Failure]:
    """What each job is taken for that an account asks for, the ones before it counted.

    `job_ids` are the ids that the jobs get if they are stored. A failure is `IdempotencyKeyReused`,
    `BacklogFull` or `InsufficientBalance`.
    """
    outcomes: list[Known | Order | Failure] = []
    by_key: dict[str, Known | Order] = {**found.known}
    left, waiting, under_way = balance_micros, found.waiting, found.under_way
    for draft, job_id in zip(drafts, job_ids, strict=True):
        known = by_key.get(draft.dedupe_key)
        if known is not None:
            outcomes.append(known if known.digest == draft.digest else IdempotencyKeyReused())
        elif waiting >= limits.backlog:
            outcomes.append(BacklogFull(limits.backlog))
        elif left < draft.price_micros:
            outcomes.append(
                InsufficientBalance(balance_micros=left, price_micros=draft.price_micros)
            )
        else:
            order = Order(job_id, draft, is_pending=under_way < limits.turns)
            left, waiting, under_way = (
                left - draft.price_micros,
                waiting + 1,
                under_way + order.is_pending,
            )
            by_key[draft.dedupe_key] = order
            outcomes.append(order)
    return outcomes
