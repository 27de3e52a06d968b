"""Reads what many ask for at once with one query."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

MAX_KEYS = 200

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lookups(Generic[Key, Value]):
    """Values by their keys: keys that are asked for while a query runs share the next one.

    Nothing is remembered: every answer is of a query that began after it was asked for.
    """

    def __init__(self, read: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Value]]]) -> None:
        self._read = read
        self._waiting: dict[Key, asyncio.Future[Value | None]] = {}
        self._work: asyncio.Task[None] | None = None

    async def get(self, key: Key) -> Value | None:
        """The value of a key, None if there is none. Raises what the query fails with."""
        answer = self._waiting.get(key)
        if answer is None:
            answer = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._work is None:
                self._work = asyncio.create_task(self._run())
        # Whoever goes must not take the answer from the others.
        return await asyncio.shield(answer)

    async def _run(self) -> None:
        while self._waiting:
            keys = list(islice(self._waiting, MAX_KEYS))
            answers = [self._waiting.pop(key) for key in keys]
            try:
                found = await self._read(keys)
            except Exception as error:
                for answer in answers:
                    answer.set_exception(error)
                    # It is no fault that all who asked have gone.
                    answer.exception()
            else:
                for key, answer in zip(keys, answers, strict=True):
                    answer.set_result(found.get(key))
        self._work = None
