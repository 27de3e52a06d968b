"""Tells presence what was committed, without holding up the commit."""

import asyncio
from contextlib import AbstractAsyncContextManager

import grpc
from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub
from prometheus_client import Counter

from servicekit.background import background
from servicekit.client import Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from servicekit.telemetry import Metrics, logger
from services.canvas.batch import Found, Outcome
from services.canvas.domain.canonical import hex_of

# An instance that nobody can reach must not fill our memory; who misses news reads sync-status.
MAX_WAITING = 10_000
MAX_BATCH = 500
# Of each canvas, what a frame takes; and of all of them.
MAX_OPERATIONS_BYTES = 16 * 1024
MAX_WAITING_BYTES = 16 * 1024 * 1024
MAX_NEWS = 50
ANNOUNCE_SECONDS = 2.0
# While much is committed, what comes within this time is told at once: a call costs as much as half
# an edit. What comes after a silence is told immediately.
GATHER_SECONDS = 0.016

Key = tuple[str, str]


class Feed:
    """The news that presence has not heard yet, of each canvas in the order of its commits.

    Operations are kept up to 16 KiB a canvas; over that, only where it is.
    """

    def __init__(self) -> None:
        self._waiting: dict[Key, list[presence_pb2.Invalidation]] = {}
        self._bytes = 0
        self._news = asyncio.Event()

    def changed(self, account_id: str, canvas_id: str, found: Found, outcome: Outcome) -> None:
        """Has presence told, soon, what requests made of a canvas. Never waits, never fails."""
        head = outcome.canvas.head
        assert head is not None
        done = outcome.done
        size = sum(len(each.operations) for each in done)
        fits = size <= MAX_OPERATIONS_BYTES
        joined = ",".join(each.operations[1:-1] for each in done) if fits else ""
        self._tell(
            presence_pb2.Invalidation(
                account_id=account_id,
                canvas_id=canvas_id,
                revision=head.revision,
                content_hash=hex_of(head.content_hash),
                base_revision=found.version.revision if found.version else 0,
                operations=f"[{joined}]".encode() if joined else b"",
                mutation_id=done[0].mutation_id if len(done) == 1 else "",
                incarnation=found.version.key if found.version else 0,
            )
        )

    def leased(self, account_id: str, canvas_id: str) -> None:
        """Has presence told, soon, that a lease of a canvas changed. Never waits, never fails."""
        self._tell(
            presence_pb2.Invalidation(
                account_id=account_id, canvas_id=canvas_id, leases_changed=True
            )
        )

    def deleted(self, account_id: str, canvas_id: str, incarnation: int) -> None:
        """Has presence told, soon, that a canvas is gone. Never waits, never fails."""
        self._tell(
            presence_pb2.Invalidation(
                account_id=account_id, canvas_id=canvas_id, deleted=True, incarnation=incarnation
            )
        )

    async def batch(self) -> list[presence_pb2.Invalidation]:
        """Waits for news and takes up to 500 of them."""
        await self._news.wait()
        taken: list[presence_pb2.Invalidation] = []
        for key in list(self._waiting):
            if len(taken) + len(self._waiting[key]) > MAX_BATCH:
                break
            taken += self._waiting.pop(key)
        self._bytes -= _size(taken)
        if not self._waiting:
            self._news.clear()
        return taken

    def _tell(self, news: presence_pb2.Invalidation) -> None:
        key = (news.account_id, news.canvas_id)
        waiting = self._waiting.get(key, [])
        if not waiting and len(self._waiting) == MAX_WAITING:
            return
        before = _size(waiting)
        told = [*waiting, news]
        size = _size(told)
        is_much = len(told) > MAX_NEWS or self._bytes - before + size > MAX_WAITING_BYTES
        if size > MAX_OPERATIONS_BYTES or is_much:
            told = [_in_short(told)]
        self._waiting[key] = told
        self._bytes += _size(told) - before
        self._news.set()


def _size(news: list[presence_pb2.Invalidation]) -> int:
    return sum(len(each.operations) for each in news)


def _in_short(news: list[presence_pb2.Invalidation]) -> presence_pb2.Invalidation:
    """Where the canvas is after all of it, without what led there."""
    newest = max(news, key=lambda each: (each.incarnation, each.revision))
    return presence_pb2.Invalidation(
        account_id=newest.account_id,
        canvas_id=newest.canvas_id,
        revision=newest.revision,
        content_hash=newest.content_hash,
        leases_changed=any(each.leases_changed for each in news),
        # What tells of a later canvas ends the rooms of those before it.
        deleted=any(each.deleted and each.incarnation == newest.incarnation for each in news),
        incarnation=newest.incarnation,
    )


def feeding(feed: Feed, presence: Client, metrics: Metrics) -> AbstractAsyncContextManager[None]:
    """Passes the news on to presence, inside the block."""
    return background(_tell(feed, presence, metrics))


async def _tell(feed: Feed, presence: Client, metrics: Metrics) -> None:
    counter = Counter(
        "gesso_canvas_news",
        "Commits of canvases and leases that presence was told of, or could not be.",
        ["outcome"],
        registry=metrics.registry,
    )
    log = logger("canvas.feed")
    stub = PresenceServiceStub(presence.channel)
    while True:
        news = await feed.batch()
        request = presence_pb2.AnnounceRequest(invalidations=news)
        outcome = "told"
        try:
            await presence.call(stub.Announce, request, Behalf(), seconds=ANNOUNCE_SECONDS)
        except (Failure, grpc.aio.AioRpcError) as error:
            # Lost news is not promised to arrive: sessions compare sync-status.
            log.warning("presence was not told", news=len(news), why=str(error))
            outcome = "lost"
        counter.labels(outcome).inc(len(news))
        await asyncio.sleep(GATHER_SECONDS)
