"""Brings the ends of jobs to their canvases, each exactly once, however often it is begun."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc

from servicekit.background import background
from servicekit.errors import Conflict, Failure, Invalid
from servicekit.pauses import spread
from servicekit.telemetry import logger
from servicekit.times import rfc3339
from services.generation.canvases import Canvases
from services.generation.deliveries_store import DeliveriesStore, Delivery
from services.generation.domain.jobs import CANVAS_REFUSED
from services.generation.domain.placement import (
    Edit,
    Nodes,
    Result,
    nodes_to_read,
    place,
    show_end,
)
from services.generation.wakeups import Wakeups

MAX_AT_ONCE = 8
MAX_READS = 5
LONGEST_PAUSE_SECONDS = 60.0

# The mutation was applied by an earlier delivery, which had read another state.
_APPLIED_BEFORE = "canvas_mutation_id_reused"
_NO_ROOM = frozenset({"canvas_too_large", "structured_storage_exceeded"})


@dataclass(frozen=True)
class Pace:
    """How patient deliveries are.

    `lease_seconds`: how long one may take before another process takes it. `pause_seconds`: how
    long after one that failed the next begins; twice as long each time. `poll_seconds`: how often
    to look for some that nobody said anything of. `drain_seconds`: how long they may take at the
    end of the process.
    """

    lease_seconds: float
    pause_seconds: float
    poll_seconds: float
    drain_seconds: float


class Deliveries:
    """The deliveries that this process takes."""

    def __init__(
        self, store: DeliveriesStore, canvases: Canvases, wakeups: Wakeups, pace: Pace
    ) -> None:
        self._store = store
        self._canvases = canvases
        self._wakeups = wakeups
        self._pace = pace
        self._running: set[asyncio.Task[None]] = set()
        self._log = logger("generation.delivery")

    async def take(self, limit: int) -> list[Delivery]:
        """Takes up to `limit` deliveries that are due, so that nobody else does for a while."""
        return await self._store.take(limit, timedelta(seconds=self._pace.lease_seconds))

    async def tell_canvas(self, delivery: Delivery) -> str | None:
        """Puts the end of a job on its canvas.

        None for a result that is on the canvas, or that nobody waits for any more (GN10), and for a
        job that was cancelled (GN25); else the sentence that says why there is no result (GN13).
        Raises the failure of a canvas service that does not answer.
        """
        if delivery.is_cancelled:
            await self._is_taken(delivery, self._release(delivery))
            return None
        error = delivery.error
        if delivery.outputs is not None:
            if await self._is_taken(delivery, self._place(delivery)):
                return None
            error = CANVAS_REFUSED
        await self._is_taken(delivery, self._mark(delivery, error))
        return error

    async def finish(self, delivery: Delivery, error: str | None) -> None:
        """Ends the job, once its canvas has been told."""
        if delivery.is_over:
            await self._store.marked(delivery)
            return
        if error is None:
            is_ours = await self._store.complete(delivery)
        else:
            is_ours = await self._store.fail(delivery, error)
        if is_ours:
            self._wakeups.job_changed(delivery.job_id, delivery.account_id)

    async def deliver_forever(self) -> None:
        """Takes deliveries as they come."""
        while True:
            calls = self._wakeups.deliveries.calls
            free = MAX_AT_ONCE - len(self._running)
            taken: list[Delivery] = []
            if free > 0:
                try:
                    taken = await self.take(free)
                except Failure as failure:
                    self._log.warning("deliveries were not read", why=failure.detail)
            for delivery in taken:
                task = asyncio.create_task(self._deliver(delivery), name=delivery.job_id)
                self._running.add(task)
                task.add_done_callback(self._ended)
            if len(taken) < free or free == 0:
                pause = spread(2 * self._pace.poll_seconds)
                await self._wakeups.deliveries.wait(pause, since=calls)

    async def drained(self) -> None:
        """Waits for what was taken; what takes too long is left to another process."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._pace.drain_seconds)
            for task in late:
                task.cancel()
            # They use the database, which is closed after this.
            await asyncio.gather(*late, return_exceptions=True)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            error = await self.tell_canvas(delivery)
        except (Failure, grpc.aio.AioRpcError) as failure:
            longest = min(
                self._pace.pause_seconds * 2 ** min(delivery.token, 16), LONGEST_PAUSE_SECONDS
            )
            pause = spread(longest)
            self._log.warning(
                "put off", job_id=delivery.job_id, seconds=round(pause, 3), why=str(failure)
            )
            await self._store.delay(delivery, timedelta(seconds=pause))
        else:
            await self.finish(delivery, error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wakeups.deliveries.wake()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Its lease runs out, and it is taken again.
            self._log.error("fault", job_id=task.get_name(), exc_info=error)

    async def _is_taken(self, delivery: Delivery, telling: Awaitable[None]) -> bool:
        """Whether the canvas takes what it is told; not if it would never, whenever it is told."""
        try:
            await telling
        except Failure as failure:
            if not isinstance(failure, Invalid) and failure.machine_word not in _NO_ROOM:
                raise
            self._log.warning("refused", job_id=delivery.job_id, why=failure.detail)
            return False
        return True

    async def _place(self, delivery: Delivery) -> None:
        target, outputs = delivery.target, delivery.outputs
        if target is None or not outputs:
            return
        result = Result(
            job_id=delivery.job_id,
            title=delivery.label,
            prompt=delivery.prompt,
            outputs=outputs,
            at=rfc3339(delivery.ended_at),
        )
        await self._edit(
            delivery,
            f"job:{delivery.job_id}",
            nodes_to_read(delivery.job_id, target.node_id, len(outputs)),
            lambda nodes: place(result, target, nodes),
        )

    async def _mark(self, delivery: Delivery, error: str) -> None:
        await self._show_end(delivery, "failed", {"status": "error", "errorDetails": error})

    async def _release(self, delivery: Delivery) -> None:
        await self._show_end(delivery, "cancelled", {"status": "idle", "errorDetails": None})

    async def _show_end(
        self, delivery: Delivery, task_status: str, members: Mapping[str, Any]
    ) -> None:
        """Shows an end without a result on the placeholder, if there is one."""
        node_id = delivery.target.node_id if delivery.target else None
        if node_id is None:
            return
        shown = {
            **members,
            "taskStatus": task_status,
            "taskUpdatedAt": rfc3339(delivery.ended_at),
        }
        await self._edit(
            delivery,
            f"job:{delivery.job_id}:{task_status}",
            [node_id],
            lambda nodes: show_end(delivery.job_id, node_id, nodes, shown),
        )

    async def _edit(
        self,
        delivery: Delivery,
        mutation_id: str,
        node_ids: Sequence[str],
        decide: Callable[[Nodes], list[Edit]],
    ) -> None:
        """Applies what `decide` makes of the nodes; reads them again if they have changed."""
        account_id, canvas_id = delivery.account_id, delivery.canvas_id
        conflict: Conflict | None = None
        for _ in range(MAX_READS):
            seen = await self._canvases.nodes(account_id, canvas_id, node_ids)
            edits = decide(seen.nodes) if seen else []
            if seen is None or not edits:
                return
            try:
                await self._canvases.apply(
                    account_id, canvas_id, mutation_id, edits, base_revision=seen.revision
                )
            except Conflict as failure:
                if failure.machine_word == _APPLIED_BEFORE:
                    return
                conflict = failure
            else:
                return
        assert conflict is not None
        raise conflict


@asynccontextmanager
async def delivering(deliveries: Deliveries) -> AsyncIterator[None]:
    """Delivers inside the block; what was taken is brought to its end after it."""
    try:
        async with background(deliveries.deliver_forever()):
            yield
    finally:
        await deliveries.drained()
