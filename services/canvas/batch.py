"""Decides what the requests that wait for one canvas come to, one after another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from servicekit.errors import Failure
from servicekit.strictjson import dumps
from servicekit.times import rfc3339
from services.canvas.domain import operations
from services.canvas.domain.failures import MutationIdReused
from services.canvas.domain.leases import Lease, check_proof
from services.canvas.domain.media import Known, check_media, may_name, named
from services.canvas.domain.mutation import Mutation, Receipt
from services.canvas.domain.operations import NOTHING_WRITTEN, Canvas, Change, Written


@dataclass(frozen=True)
class Applied:
    """The answer to a mutation, and whether it was given before."""

    receipt: Receipt
    replayed: bool


@dataclass(frozen=True)
class Version:
    """Tells whether a canvas was changed, or the text of a node leased, since it was read."""

    key: int
    revision: int
    lease_version: int


@dataclass(frozen=True)
class Found:
    """What requests touch: receipts of those that were committed, the canvas, leases by node.

    `version` is None where there is no canvas; `now` is the database's time.
    """

    receipts: Mapping[str, Receipt]
    canvas: Canvas
    leases: Mapping[str, Lease]
    version: Version | None
    now: datetime


@dataclass(frozen=True)
class Done:
    """A request that is to be committed; `operations` is what it did, a JSON array."""

    mutation_id: str
    receipt: Receipt
    operations: str


@dataclass(frozen=True)
class Outcome:
    """What the requests came to: the canvas after them, what to write, an answer for each."""

    canvas: Canvas
    written: Written
    done: list[Done]
    answers: list[Applied | Failure]


def decide(found: Found, known: Known, mutations: Sequence[Mutation]) -> Outcome:
    """What the requests come to in their order, each all or none, each on the result of those
    before it.

    `known` is what the account has of the media that they name.
    """
    receipts, leases = dict(found.receipts), dict(found.leases)
    canvas, written = found.canvas, NOTHING_WRITTEN
    applied_at = rfc3339(found.now)
    done: list[Done] = []
    answers: list[Applied | Failure] = []
    for mutation in mutations:
        asked = mutation.digest()
        seen = receipts.get(mutation.mutation_id)
        if seen is not None:
            same = seen.digest == asked
            answers.append(Applied(seen, replayed=True) if same else MutationIdReused())
            continue
        try:
            change = _change(canvas, mutation, leases, known, found.now)
        except Failure as failure:
            answers.append(failure)
            continue
        canvas, written = canvas.after(change), written.and_then(change)
        for node_id, stored in change.written.nodes.items():
            if stored is None:
                leases.pop(node_id, None)
        receipt = _receipt(mutation.mutation_id, asked, change.head.revision, applied_at)
        receipts[mutation.mutation_id] = receipt
        done.append(Done(mutation.mutation_id, receipt, dumps(change.effective)))
        answers.append(Applied(receipt, replayed=False))
    return Outcome(canvas, written, done, answers)


def media_named(canvas: Canvas, mutations: Iterable[Mutation]) -> tuple[set[str], set[str]]:
    """Ids of all resources and assets that nodes may name after the requests."""
    stored = [
        node.value for node in canvas.nodes.values() if node is not None and may_name(node.text)
    ]
    payloads = [edit.effect() for mutation in mutations for edit in mutation.edits]
    return named([*stored, *payloads])


def _change(
    canvas: Canvas,
    mutation: Mutation,
    leases: Mapping[str, Lease],
    known: Known,
    now: datetime,
) -> Change:
    change = operations.apply(
        canvas,
        mutation.edits,
        check=lambda edit: check_proof(edit, leases, mutation.proofs, now),
    )
    check_media(
        (
            node.value
            for node in change.written.nodes.values()
            if node is not None and may_name(node.text)
        ),
        known,
    )
    return change


def _receipt(mutation_id: str, asked: bytes, revision: int, applied_at: str) -> Receipt:
    result = (
        f'{{"mutationId":{dumps(mutation_id)},"revision":{revision},"appliedAt":"{applied_at}"}}'
    )
    return Receipt(digest=asked, revision=revision, result=result.encode())
