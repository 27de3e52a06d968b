"""The queues of others under the load of `bench.queue`: no-op jobs, in a process of their own.

    load.py procrastinate|pgqueuer DATABASE_URL rate|held|latency|enqueue|single COUNT

Prints one line of JSON. Each runs as its documentation says, with its own worker in this process.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import procrastinate
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

IN_FLIGHT = 50
A_LIST = 100
IDLE_SECONDS = 0.02


class Procrastinate:
    """procrastinate with its psycopg connector."""

    def __init__(self, url: str) -> None:
        self._url = url
        connector = procrastinate.PsycopgConnector(conninfo=url, max_size=10)
        self.app = procrastinate.App(connector=connector)
        self.begun: Callable[[], None] = lambda: None

        @self.app.task(name="noop")
        async def noop() -> None:
            self.begun()

        self._noop = noop

    async def prepare(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def enqueue(self, count: int) -> float:
        """Seconds for so many jobs, in lists of 100."""
        async with self.app.open_async():
            began = time.perf_counter()
            for start in range(0, count, A_LIST):
                size = min(A_LIST, count - start)
                await self._noop.batch_defer_async(*[{} for _ in range(size)])
            return time.perf_counter() - began

    async def enqueue_singly(self, count: int) -> float:
        """Seconds for so many jobs, one after another."""
        async with self.app.open_async():
            began = time.perf_counter()
            for _ in range(count):
                await self._noop.defer_async()
            return time.perf_counter() - began

    async def drain(self) -> float:
        """Seconds until the queue is empty."""
        async with self.app.open_async():
            began = time.perf_counter()
            await self.app.run_worker_async(
                concurrency=IN_FLIGHT, wait=False, install_signal_handlers=False
            )
            return time.perf_counter() - began

    async def latencies(self, count: int) -> list[float]:
        """Seconds from before a job is asked for until it begins, while nothing else is done."""
        async with self.app.open_async():
            worker = asyncio.create_task(
                self.app.run_worker_async(
                    concurrency=IN_FLIGHT, wait=True, install_signal_handlers=False
                )
            )
            await asyncio.sleep(1)
            found = await _latencies(self, count, self._noop.defer_async)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            return found


class Pgqueuer:
    """PgQueuer on a pool of asyncpg."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.begun: Callable[[], None] = lambda: None

    async def prepare(self) -> None:
        async with asyncpg.create_pool(self._url) as pool:
            await Queries(AsyncpgPoolDriver(pool)).install()

    async def enqueue(self, count: int) -> float:
        """Seconds for so many jobs, in lists of 100."""
        async with asyncpg.create_pool(self._url) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            began = time.perf_counter()
            for start in range(0, count, A_LIST):
                size = min(A_LIST, count - start)
                await queries.enqueue(["noop"] * size, [b""] * size, [0] * size)
            return time.perf_counter() - began

    async def drain(self) -> float:
        """Seconds until the queue is empty."""
        async with asyncpg.create_pool(self._url) as pool:
            queuer = self._queuer(pool)
            began = time.perf_counter()
            await queuer.run(
                batch_size=25,
                max_concurrent_tasks=IN_FLIGHT,
                mode=QueueExecutionMode.drain,
                dequeue_timeout=timedelta(seconds=1),
            )
            return time.perf_counter() - began

    async def latencies(self, count: int) -> list[float]:
        """Seconds from before a job is asked for until it begins, while nothing else is done."""
        async with asyncpg.create_pool(self._url) as pool:
            queuer = self._queuer(pool)
            queries = Queries(AsyncpgPoolDriver(pool))
            worker = asyncio.create_task(queuer.run(batch_size=25))
            await asyncio.sleep(1)
            found = await _latencies(self, count, lambda: queries.enqueue("noop", b"", 0))
            queuer.shutdown.set()
            await worker
            return found

    def _queuer(self, pool: asyncpg.Pool) -> PgQueuer:
        queuer = PgQueuer(AsyncpgPoolDriver(pool))

        @queuer.entrypoint("noop")
        async def noop(_job: object) -> None:
            self.begun()

        return queuer


async def _latencies(
    queue: Procrastinate | Pgqueuer, count: int, enqueue: Callable[[], Awaitable[object]]
) -> list[float]:
    found = []
    for _ in range(count):
        begun = asyncio.Event()
        queue.begun = begun.set
        asked = time.perf_counter()
        await enqueue()
        await asyncio.wait_for(begun.wait(), 30)
        found.append(time.perf_counter() - asked)
        await asyncio.sleep(IDLE_SECONDS)
    return found


async def _held(queue: Procrastinate | Pgqueuer, url: str, count: int) -> dict[str, float]:
    """Seconds for the last tenth of the jobs while a snapshot is open since before the first."""
    await queue.enqueue(count // 10)
    clean = await queue.drain()
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT 1")
            await queue.enqueue(count - count // 10)
            await queue.drain()
            await queue.enqueue(count // 10)
            held = await queue.drain()
    finally:
        await connection.close()
    return {"clean": clean, "held": held}


async def main(name: str, url: str, what: str, count: int) -> None:
    queue = Procrastinate(url) if name == "procrastinate" else Pgqueuer(url)
    await queue.prepare()
    if what == "rate":
        await queue.enqueue(count)
        print(json.dumps(await queue.drain()))
    elif what == "enqueue":
        print(json.dumps(await queue.enqueue(count)))
    elif what == "single":
        assert isinstance(queue, Procrastinate)
        print(json.dumps(await queue.enqueue_singly(count)))
    elif what == "latency":
        print(json.dumps(await queue.latencies(count)))
    else:
        print(json.dumps(await _held(queue, url, count)))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
