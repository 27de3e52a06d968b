"""Wakes those who wait: for work, in this process at once and in others by NOTIFY; for changes."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress

from servicekit.background import background
from servicekit.errors import Failure
from servicekit.notifications import listening
from servicekit.postgres import Database
from servicekit.telemetry import logger

# Jobs that came: who says so, and how many.
PENDING = "generation_pending"
# Jobs whose summaries changed: a line for each, its id and its account.
CHANGED = "generation_changed"

# At most so often is a channel notified: each time takes a lock that all of PostgreSQL shares.
QUIET_SECONDS = 0.02
# A notification carries less than 8,000 bytes.
MAX_NOTIFICATION_BYTES = 7_900

NOTIFY = "SELECT pg_notify($1, $2)"


class Waiters:
    """Those who wait for something, woken one after another."""

    def __init__(self) -> None:
        self.calls = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def wake(self, count: int = 1) -> None:
        """Wakes those who have waited longest."""
        self.calls += 1
        while count > 0 and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Wakes everyone."""
        self.wake(len(self._waiting))

    async def wait(self, seconds: float, *, since: int) -> None:
        """Waits to be woken, for so long at most; not at all if `calls` is not `since` any more."""
        if self.calls != since:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiting
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)


class Wakeups:
    """What is waited for: jobs that can be claimed, deliveries that are due, changes of jobs."""

    def __init__(self) -> None:
        self.pending = Waiters()
        self.deliveries = Waiters()
        # Those who only want to know: they take no wake-up from a claim.
        self.arrivals = Waiters()
        self._name = secrets.token_hex(8)
        self._came = 0
        self._changed: dict[str, str] = {}
        self._news = asyncio.Event()

    def jobs_came(self, count: int = 1) -> None:
        """So many jobs can be claimed."""
        self.pending.wake(count)
        self.arrivals.wake_all()
        self._came += count
        self._news.set()

    def job_changed(self, job_id: str, account_id: str) -> None:
        """What people see of a job has changed."""
        self._changed[job_id] = account_id
        self._news.set()

    def heard(self, payload: str) -> None:
        """Another process says that jobs can be claimed."""
        name, _, count = payload.partition(" ")
        if name != self._name:
            self.pending.wake(int(count))
            self.arrivals.wake_all()

    async def notify_forever(self, database: Database) -> None:
        """Tells the other processes. What is lost here is found by those who look now and then."""
        log = logger("generation.wakeups")
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                for channel, payload in self._notifications():
                    await database.execute(NOTIFY, channel, payload)
            except Failure as failure:
                log.warning("others were not told", why=failure.detail)
            await asyncio.sleep(QUIET_SECONDS)

    def _notifications(self) -> list[tuple[str, str]]:
        notifications = []
        if self._came:
            notifications.append((PENDING, f"{self._name} {self._came}"))
            self._came = 0
        changed, self._changed = self._changed, {}
        lines = [f"{job_id} {account_id}" for job_id, account_id in changed.items()]
        notifications += [(CHANGED, payload) for payload in _payloads(lines)]
        return notifications


def _payloads(lines: Iterable[str]) -> Iterator[str]:
    """The lines in as few payloads as carry them; a line that is too long for one is left out."""
    payload: list[str] = []
    size = 0
    for line in lines:
        longer = len(line.encode()) + 1
        if payload and size + longer > MAX_NOTIFICATION_BYTES:
            yield "\n".join(payload)
            payload, size = [], 0
        if longer <= MAX_NOTIFICATION_BYTES:
            payload.append(line)
            size += longer
    if payload:
        yield "\n".join(payload)


@asynccontextmanager
async def waking(wakeups: Wakeups, database: Database, url: str) -> AsyncIterator[None]:
    """Hears the other processes and tells them, inside the block."""
    async with (
        listening(url, PENDING, heard=wakeups.heard, missed=wakeups.pending.wake_all),
        background(wakeups.notify_forever(database)),
    ):
        yield
