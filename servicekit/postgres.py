"""PostgreSQL: pools, transactions, and driver errors turned into failures."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from servicekit.errors import Invalid, Unavailable
from servicekit.settings import Settings, setting

if TYPE_CHECKING:
    Connection = PoolConnectionProxy[asyncpg.Record]
    _DriverConnection = asyncpg.Connection[asyncpg.Record]
else:  # generic in its stubs only
    Connection = PoolConnectionProxy
    _DriverConnection = asyncpg.Connection

ACQUIRE_SECONDS = 5.0
# A statement that takes too long is ended by the database; if it does not say so within this time,
# the connection is dead.
ANSWER_SECONDS = 5.0

# How our sessions plan: once for each statement, whatever the values, and by indexes. Else a plan
# that was made while a table was empty would read the whole table ever after.
PLANNING = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}


class Contention(Unavailable):
    """Another transaction was in the way for too long: nothing was done, try again."""


class DatabaseSettings(Settings, frozen=True, kw_only=True):
    """Where the data is, and how patient to be."""

    database_url: Annotated[
        str,
        setting(
            "Where PostgreSQL is.",
            example="postgresql://gesso:secret@db:5432/gesso",
            shared=True,
            secret=True,
            pattern="^postgres(ql)?://",
        ),
    ]
    database_connections: Annotated[
        int,
        setting("At most so many connections a process.", example="8", shared=True, ge=2, le=200),
    ] = 8
    statement_seconds: Annotated[
        float,
        setting("How long a statement may take.", example="10", shared=True, gt=0, le=600),
    ] = 10
    lock_seconds: Annotated[
        float,
        setting("How long to wait for a lock.", example="3", shared=True, gt=0, le=600),
    ] = 3


class _Connection(_DriverConnection):
    def get_reset_query(self) -> str:
        # Nothing we do outlives its transaction; a reset costs a fifth of a short statement.
        return ""


class Database:
    """A pool of connections to one database."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self._pool = pool

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection on which each statement is its own transaction."""
        with translated():
            async with self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
                yield connection

    @asynccontextmanager
    async def transaction(
        self, *, isolation: Literal["repeatable_read"] | None = None
    ) -> AsyncIterator[Connection]:
        """A connection inside one transaction: committed at the end, undone on any exception.

        Each statement sees what is committed before it, or all see the same (`repeatable_read`).
        """
        async with self.connection() as connection, connection.transaction(isolation=isolation):
            yield connection

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """The rows of one statement in its own transaction."""
        async with self.connection() as connection:
            return await connection.fetch(statement, *arguments)

    async def fetchrow(self, statement: str, *arguments: Any) -> asyncpg.Record | None:
        """The first row of one statement in its own transaction."""
        async with self.connection() as connection:
            return await connection.fetchrow(statement, *arguments)

    async def execute(self, statement: str, *arguments: Any) -> None:
        """Runs one statement in its own transaction."""
        async with self.connection() as connection:
            await connection.execute(statement, *arguments)

    async def delete(self, statement: str, *arguments: Any) -> int:
        """Runs one DELETE in its own transaction; how many rows it took away."""
        async with self.connection() as connection:
            tag = await connection.execute(statement, *arguments)
        return int(tag.removeprefix("DELETE "))

    async def check(self) -> None:
        """Raises `Unavailable` if the database does not answer."""
        await self.fetchrow("SELECT 1")


@asynccontextmanager
async def connected(settings: DatabaseSettings, *, application: str) -> AsyncIterator[Database]:
    """A pool, closed at the end. It opens connections as they are needed.

    `application` is what the database's own views call us.
    """
    pool = asyncpg.create_pool(
        settings.database_url,
        min_size=0,
        max_size=settings.database_connections,
        connection_class=_Connection,
        command_timeout=settings.statement_seconds + ANSWER_SECONDS,
        server_settings={
            "application_name": f"gesso-{application}",
            "statement_timeout": _milliseconds(settings.statement_seconds),
            "lock_timeout": _milliseconds(settings.lock_seconds),
            "idle_in_transaction_session_timeout": _milliseconds(settings.statement_seconds),
            "timezone": "UTC",
            **PLANNING,
        },
    )
    async with pool:
        yield Database(pool)


@contextmanager
def translated() -> Iterator[None]:
    """Turns driver errors into failures, inside the block.

    Lost, refused or exhausted connections are `Unavailable`; lock waits, deadlocks and failed
    serialisation are `Contention`; text that PostgreSQL cannot hold is `Invalid`. Everything else
    (a wrong statement, a broken constraint) is a fault and passes through.
    """
    try:
        yield
    except (
        asyncpg.LockNotAvailableError,
        asyncpg.DeadlockDetectedError,
        asyncpg.SerializationError,
    ) as error:
        raise Contention("Something else is changing this now; try again.") from error
    except (
        asyncpg.CharacterNotInRepertoireError,
        asyncpg.UntranslatableCharacterError,
    ) as error:
        raise Invalid("The text contains characters that cannot be stored.") from error
    except (
        asyncpg.QueryCanceledError,
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        # What the driver says of a connection that was ended while it began a statement.
        asyncpg.InternalClientError,
        asyncpg.CannotConnectNowError,
        asyncpg.TooManyConnectionsError,
        asyncpg.AdminShutdownError,
        asyncpg.CrashShutdownError,
        asyncpg.IdleInTransactionSessionTimeoutError,
        asyncpg.InsufficientResourcesError,
        asyncpg.ReadOnlySQLTransactionError,
        ConnectionError,
        OSError,
        TimeoutError,
    ) as error:
        raise Unavailable("The database does not answer; try again.") from error


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
