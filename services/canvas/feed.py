"""Tells presence what was committed, without holding up the commit."""

import asyncio
from contextlib import AbstractAsyncContextManager

import grpc
from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub

from servicekit.background import background
from servicekit.client import Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from servicekit.telemetry import logger
from services.canvas.domain.canonical import hex_of

# An instance that nobody can reach must not fill our memory; who misses news reads sync-status.
MAX_WAITING = 10_000
MAX_BATCH = 500
ANNOUNCE_SECONDS = 2.0
# While much is committed, what comes within this time is told at once: a call costs as much as half
# an edit. What comes after a silence is told immediately.
GATHER_SECONDS = 0.016


class Feed:
    """The news that presence has not heard yet: where each canvas is, the newest only."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], presence_pb2.Invalidation] = {}
        self._news = asyncio.Event()

    def changed(self, account_id: str, canvas_id: str, *, revision: int, content_hash: int) -> None:
        """Has presence told, soon, where a canvas is. Never waits, never fails."""
        key = (account_id, canvas_id)
        if key in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[key] = presence_pb2.Invalidation(
                account_id=account_id,
                canvas_id=canvas_id,
                revision=revision,
                content_hash=hex_of(content_hash),
            )
            self._news.set()

    async def batch(self) -> list[presence_pb2.Invalidation]:
        """Waits for news and takes up to 500 of them."""
        await self._news.wait()
        keys = list(self._waiting)[:MAX_BATCH]
        taken = [self._waiting.pop(key) for key in keys]
        if not self._waiting:
            self._news.clear()
        return taken


def feeding(feed: Feed, presence: Client) -> AbstractAsyncContextManager[None]:
    """Passes the news on to presence, inside the block."""
    return background(_tell(feed, presence))


async def _tell(feed: Feed, presence: Client) -> None:
    log = logger("canvas.feed")
    stub = PresenceServiceStub(presence.channel)
    while True:
        news = presence_pb2.AnnounceRequest(invalidations=await feed.batch())
        try:
            await presence.call(stub.Announce, news, Behalf(), seconds=ANNOUNCE_SECONDS)
        except (Failure, grpc.aio.AioRpcError) as error:
            # Lost news is not promised to arrive: sessions compare sync-status.
            log.warning("presence was not told", canvases=len(news.invalidations), why=str(error))
        await asyncio.sleep(GATHER_SECONDS)
