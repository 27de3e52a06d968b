"""What can be done with tasks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from servicekit.errors import IdempotencyKeyReused, Invalid, NotFound
from servicekit.ids import new_id
from services.tasks.domain.tasks import Choice, LogEntry, Order, Task, check_backlog
from services.tasks.domain.text import Alive, Terminal, TextEvent
from services.tasks.feed import TextFeed
from services.tasks.models import DEFAULT, TextModels
from services.tasks.store import TasksStore


@dataclass(frozen=True)
class Created:
    """The task of an order, and whether it had been made before."""

    task: Task
    replayed: bool


class TasksService:
    """The tasks of all accounts; every method acts for one of them."""

    def __init__(
        self,
        store: TasksStore,
        feed: TextFeed,
        models: TextModels,
        *,
        waiting_per_account: int,
        alive_seconds: float,
    ) -> None:
        self._store = store
        self._feed = feed
        self._models = models
        self._waiting_per_account = waiting_per_account
        self._alive_seconds = alive_seconds

    async def create(self, account_id: str, order: Order) -> Created:
        """Makes a task once, however often it is ordered (TK1 to TK3)."""
        async with self._store.locked(account_id) as account:
            known = await account.known(order.request_id)
            if known is not None:
                if known.digest != order.digest():
                    raise IdempotencyKeyReused
                return Created(known.task, replayed=True)

            model = order.model or DEFAULT
            if model not in self._models:
                raise Invalid(f"There is no text model called {model[:80]!r}.", path="model")
            check_backlog(account.waiting, most=self._waiting_per_account)

            task = await account.add(new_id("tk"), order, model)
        return Created(task, replayed=False)

    async def read(self, account_id: str, task_id: str) -> tuple[Task, list[LogEntry]]:
        """A task with its log. Raises `NotFound`."""
        found = await self._store.task(account_id, task_id)
        if found is None:
            raise NotFound("task")
        return found

    async def page(self, account_id: str, choice: Choice, before: int, limit: int) -> list[Task]:
        """Up to `limit` of the chosen tasks, newest first, with keys below `before`."""
        return await self._store.page(account_id, choice, before, limit)

    async def watch(
        self, account_id: str, task_id: str, after: int
    ) -> AsyncIterator[TextEvent | Alive | Terminal]:
        """The text of a task after a sequence number, as it comes, to its end (TK9, TK12).

        Raises `NotFound`; `Draining` when the process goes away, and what reading fails with.
        """
        if after < 0:
            raise Invalid("A sequence number is not negative.", path="after")
        standing = await self._store.standing(account_id, task_id)
        if standing is None:
            raise NotFound("task")
        yield Alive()
        with self._feed.joined(standing) as topic:
            while True:
                events = topic.after(after)
                if events is None:
                    events = await self._stored(standing.key, after)
                for event in events:
                    yield event
                    after = event.sequence
                if events:
                    continue
                if topic.ending is not None:
                    yield topic.ending
                    return
                topic.check()
                if not await topic.changed(within_seconds=self._alive_seconds):
                    yield Alive()

    async def _stored(self, task_key: int, after: int) -> list[TextEvent]:
        readings = await self._store.texts({task_key: after})
        if task_key not in readings:
            raise NotFound("task")
        return readings[task_key].events
