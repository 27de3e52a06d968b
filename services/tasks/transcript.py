"""Gathers the pieces of a text and stores them in groups, so that tokens cost no writes each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from services.tasks.domain.failures import TextTooLong
from services.tasks.domain.text import (
    MAX_EVENTS,
    MAX_TEXT_BYTES,
    Pace,
    contents,
    events_of_attempt,
    storable,
)
from services.tasks.patience import patiently
from services.tasks.work_store import Claim, WorkStore


class Transcript:
    """The text of one attempt on its way into the database."""

    def __init__(
        self, store: WorkStore, claim: Claim, *, timeout_seconds: float, flush_seconds: float
    ) -> None:
        self._store = store
        self._claim = claim
        self._last_sequence = claim.last_sequence
        self._text_bytes = claim.text_bytes
        self._pace = Pace(
            events=events_of_attempt(claim.last_sequence, attempts_left=claim.attempts_left),
            seconds=timeout_seconds,
            quickest_seconds=flush_seconds,
        )
        self._pieces: list[str] = []
        self._news = asyncio.Event()
        self._closed = asyncio.Event()
        self._full = False

    def add(self, piece: str) -> None:
        """Has a piece stored, soon. Raises `TextTooLong`, with what fits already taken (TK10)."""
        piece = storable(piece)
        if not piece:
            return
        self._text_bytes += len(piece.encode())
        if self._text_bytes > MAX_TEXT_BYTES or self._full:
            raise TextTooLong
        self._pieces.append(piece)
        self._news.set()

    @asynccontextmanager
    async def stored(self) -> AsyncIterator[None]:
        """Stores what is added inside the block; all of it when the block ends.

        Raises `TextTooLong` at the end if not all of it fitted, and `LeaseLost` within an
        exception group at any time.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._store_as_it_comes())
            yield
            self._closed.set()
            self._news.set()
        if self._full:
            raise TextTooLong

    async def _store_as_it_comes(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while self._pieces or not self._closed.is_set():
            await self._news.wait()
            self._news.clear()
            await self._store_pieces()
            written = self._last_sequence - self._claim.last_sequence
            pause = self._pace.pause(written, loop.time() - started)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closed.wait()

    async def _store_pieces(self) -> None:
        parts = list(contents("".join(self._pieces)))
        self._pieces.clear()
        if self._last_sequence + len(parts) > MAX_EVENTS:
            self._full = True
        elif parts and not self._full:
            place = self._last_sequence
            self._last_sequence = await patiently(
                lambda: self._store.append(self._claim, place, parts)
            )
