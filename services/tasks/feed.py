"""Gives new text to everyone in this process who reads it: one database read, however many."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice

from servicekit.background import background
from servicekit.errors import Failure, NotFound
from servicekit.notifications import listening
from servicekit.pauses import spread
from services.tasks.domain.failures import Draining
from services.tasks.domain.text import Terminal, TextEvent
from services.tasks.store import TEXT_CHANNEL, Reading, Standing, TasksStore

# A reader that is further behind reads for itself.
KEPT_EVENTS = 256
# Texts of so many tasks are read at once.
MAX_BATCH = 32


class Topic:
    """The newest text of one task, as far as this process knows it."""

    def __init__(self, standing: Standing) -> None:
        self.key = standing.key
        self.last_sequence = standing.last_sequence
        self.ending: Terminal | None = None
        self.readers = 0
        self._failure: Failure | None = None
        self._events: deque[TextEvent] = deque(maxlen=KEPT_EVENTS)
        self._news = asyncio.Event()

    def after(self, sequence: int) -> list[TextEvent] | None:
        """The known events after a sequence number; None if only the database has them all."""
        known = self.last_sequence - len(self._events)
        if sequence < known:
            return None
        return list(islice(self._events, sequence - known, None))

    def check(self) -> None:
        """Raises what has ended the topic, if something has."""
        if self._failure is not None:
            raise self._failure

    async def changed(self, *, within_seconds: float) -> bool:
        """Waits for the next change; whether there was one in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                return await self._news.wait()
        return False

    def extend(self, reading: Reading) -> None:
        """Adds what was read after the last sequence number, and wakes the readers."""
        if reading.events:
            self._events.extend(reading.events)
            self.last_sequence = reading.events[-1].sequence
        self.ending = reading.ending
        if reading.events or reading.ending:
            self._wake()

    def fail(self, failure: Failure) -> None:
        """Ends the topic for its readers."""
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class TextFeed:
    """The tasks that somebody in this process reads."""

    def __init__(self, store: TasksStore) -> None:
        self._store = store
        self._topics: dict[str, Topic] = {}
        self._changed: dict[str, Topic] = {}
        self._news = asyncio.Event()
        self._draining = False

    def __len__(self) -> int:
        return len(self._topics)

    @contextmanager
    def joined(self, standing: Standing) -> Iterator[Topic]:
        """The topic of a task, kept up to date inside the block. Raises `Draining`."""
        if self._draining:
            raise Draining
        task_id = standing.task_id
        topic = self._topics.get(task_id)
        if topic is None:
            topic = self._topics[task_id] = Topic(standing)
            self.changed(task_id)
        topic.readers += 1
        try:
            yield topic
        finally:
            topic.readers -= 1
            if topic.readers == 0:
                self._forget(task_id, topic)

    def changed(self, task_id: str) -> None:
        """Has the task read again, soon, if somebody reads it here. Never waits."""
        topic = self._topics.get(task_id)
        if topic is not None and topic.ending is None:
            self._changed[task_id] = topic
            self._news.set()

    def look_again(self) -> None:
        """Has all tasks read again, soon. Never waits."""
        for task_id in self._topics:
            self.changed(task_id)

    def drain(self) -> None:
        """Ends all topics, since the process goes away."""
        self._draining = True
        for topic in self._topics.values():
            topic.fail(Draining())

    async def read_what_changed(self) -> None:
        """Reads what has changed, for ever; what changes meanwhile is read together."""
        while True:
            await self._news.wait()
            batch = dict(islice(self._changed.items(), MAX_BATCH))
            for task_id in batch:
                del self._changed[task_id]
            if not self._changed:
                self._news.clear()
            await self._read(batch)

    async def _read(self, batch: dict[str, Topic]) -> None:
        try:
            readings = await self._store.texts(
                {topic.key: topic.last_sequence for topic in batch.values()}
            )
        except Failure as failure:
            for task_id, topic in batch.items():
                self._end(task_id, topic, failure)
            return
        for task_id, topic in batch.items():
            reading = readings.get(topic.key)
            if reading is None:
                self._end(task_id, topic, NotFound("task"))
            else:
                topic.extend(reading)

    def _end(self, task_id: str, topic: Topic, failure: Failure) -> None:
        # Whoever joins after this starts anew.
        self._forget(task_id, topic)
        topic.fail(failure)

    def _forget(self, task_id: str, topic: Topic) -> None:
        if self._topics.get(task_id) is topic:
            del self._topics[task_id]
            self._changed.pop(task_id, None)


@asynccontextmanager
async def feeding(
    feed: TextFeed, *, database_url: str, draining: asyncio.Event, poll_seconds: float
) -> AsyncIterator[None]:
    """Keeps the feed going inside the block; ends its topics once `draining` is set."""
    async with (
        listening(database_url, TEXT_CHANNEL, heard=feed.changed, missed=feed.look_again),
        background(
            feed.read_what_changed(),
            _look_now_and_then(feed, poll_seconds),
            _drain(feed, draining),
        ),
    ):
        yield


async def _look_now_and_then(feed: TextFeed, poll_seconds: float) -> None:
    while True:
        await asyncio.sleep(spread(poll_seconds))
        feed.look_again()


async def _drain(feed: TextFeed, draining: asyncio.Event) -> None:
    await draining.wait()
    feed.drain()
