"""What can be done with canvases."""

import asyncio
import secrets
from datetime import UTC, datetime

from servicekit.errors import NotFound
from servicekit.postgres import Contention
from services.canvas.batch import Applied
from services.canvas.commits import Commits
from services.canvas.domain.agents import check_task
from services.canvas.domain.edits import check_canvas_id, check_id
from services.canvas.domain.failures import (
    AgentBusy,
    ChangesExpired,
    ConcurrentWrite,
    EditLeaseConflict,
    ObjectMissing,
)
from services.canvas.domain.leases import check_session, holder_of
from services.canvas.domain.mutation import Mutation
from services.canvas.feed import Feed
from services.canvas.store import (
    Agent,
    CanvasStore,
    Held,
    Log,
    Summary,
    SyncStatus,
    Whole,
    etag,
)

Place = tuple[datetime, int]
NEWEST: Place = (datetime(9999, 1, 1, tzinfo=UTC), 2**63 - 1)


class CanvasService:
    """The canvases of all accounts; every method acts for one of them."""

    def __init__(self, store: CanvasStore, commits: Commits, feed: Feed) -> None:
        self._store = store
        self._commits = commits
        self._feed = feed

    async def apply(self, account_id: str, mutation: Mutation) -> Applied:
        """Applies a mutation once, however often it is sent (CV10 to CV12)."""
        return await self._commits.apply(account_id, mutation)

    def begin(self, account_id: str, mutation: Mutation) -> asyncio.Future[Applied]:
        """What `apply` will return or raise. Once cancelled, a mutation is not begun any more."""
        return self._commits.begin(account_id, mutation)

    async def page(self, account_id: str, before: Place, limit: int) -> list[Summary]:
        """Up to `limit` canvases, newest change first, from before a place on."""
        return await self._store.page(account_id, before, limit)

    async def read(self, account_id: str, canvas_id: str, *, known_etag: str) -> Whole | Summary:
        """A canvas with its content, or its summary if that is known. Raises `NotFound`."""
        whole = await self._store.read(account_id, canvas_id, known_etag=known_etag)
        if whole is None:
            raise NotFound("canvas")
        return whole

    async def delete(self, account_id: str, canvas_id: str) -> None:
        """Deletes a canvas; its receipts stay. Raises `NotFound`."""
        incarnation = await self._store.delete(account_id, canvas_id)
        if incarnation is None:
            raise NotFound("canvas")
        self._feed.deleted(account_id, canvas_id, incarnation)

    async def sync_status(self, account_id: str, canvas_id: str) -> SyncStatus:
        """Where a canvas is. Raises `NotFound`."""
        status = await self._store.sync_status(account_id, canvas_id)
        if status is None:
            raise NotFound("canvas")
        return status

    async def changes(self, account_id: str, canvas_id: str, *, after: int, known_etag: str) -> Log:
        """Everything that happened after a revision (CV21).

        Raises `NotFound`, and `ChangesExpired` if that is not kept in full.
        """
        log = await self._store.log(account_id, canvas_id, after)
        if log is None:
            raise NotFound("canvas")
        created_anew = known_etag and known_etag != etag(after, log.incarnation)
        if created_anew or after > log.revision or len(log.changes) != log.revision - after:
            raise ChangesExpired
        return log

    async def some_nodes(
        self, account_id: str, canvas_id: str, node_ids: list[str]
    ) -> tuple[int, list[str]]:
        """The revision of a canvas and some of its nodes at it. Raises `NotFound`."""
        found = await self._store.some_nodes(account_id, canvas_id, node_ids)
        if found is None:
            raise NotFound("canvas")
        return found

    async def acquire_lease(
        self, account_id: str, canvas_id: str, node_id: str, session_id: str
    ) -> Held:
        """Leases a node's text to a session (CV18).

        Raises `EditLeaseConflict` if another session has it, and `ObjectMissing`.
        """
        check_session(session_id)
        check_id("node", node_id)
        try:
            # Locked: a node that is being removed must not be leased.
            async with self._store.locked(account_id, canvas_id) as session:
                held = await session.hold(
                    account_id, canvas_id, node_id, session_id, secrets.token_urlsafe(16)
                )
                other = None if held else await session.lease(account_id, canvas_id, node_id)
        except Contention:
            raise ConcurrentWrite from None
        if held is not None:
            self._feed.leased(account_id, canvas_id)
            return held
        if other is None:
            raise ObjectMissing("node", node_id)
        raise EditLeaseConflict(node_id, "another session has it", holder_of(other.lease))

    async def renew_lease(
        self, account_id: str, canvas_id: str, node_id: str, session_id: str, token: str
    ) -> Held:
        """Extends a lease. Raises `EditLeaseConflict` if it is over or another's."""
        async with self._store.opened() as session:
            held = await session.renew(account_id, canvas_id, node_id, session_id, token)
            other = None if held else await session.lease(account_id, canvas_id, node_id)
        if held is not None:
            self._feed.leased(account_id, canvas_id)
            return held
        holder = holder_of(other.lease) if other is not None and other.is_live else None
        raise EditLeaseConflict(node_id, "the lease is over or another's", holder)

    async def release_lease(
        self, account_id: str, canvas_id: str, node_id: str, session_id: str, token: str
    ) -> datetime:
        """Ends a lease, if it is the session's; the time by the database."""
        was_held, now = await self._store.release_lease(
            account_id, canvas_id, node_id, session_id, token
        )
        if was_held:
            self._feed.leased(account_id, canvas_id)
        return now

    async def admit_agent(self, account_id: str, canvas_id: str, task_id: str) -> Agent:
        """Takes a canvas for a run (CV23). Raises `AgentBusy` and `ObjectMissing`."""
        check_canvas_id(canvas_id)
        check_task(task_id)
        agent = await self._store.admit_agent(account_id, canvas_id, task_id)
        return _own(agent, canvas_id, task_id)

    async def set_agent_state(
        self, account_id: str, canvas_id: str, task_id: str, state: str
    ) -> Agent:
        """Says where a run is. Raises `AgentBusy` and `ObjectMissing`."""
        agent = await self._store.set_agent_state(account_id, canvas_id, task_id, state)
        return _own(agent, canvas_id, task_id)

    async def release_agent(self, account_id: str, canvas_id: str, task_id: str) -> None:
        """Gives a canvas back, if the run has it."""
        await self._store.release_agent(account_id, canvas_id, task_id)


def _own(agent: Agent | None, canvas_id: str, task_id: str) -> Agent:
    if agent is None:
        raise ObjectMissing("canvas", canvas_id)
    if agent.task_id != task_id:
        raise AgentBusy(agent.task_id, agent.state, agent.since)
    return agent
