"""Remembers when workers were last seen."""

from collections.abc import Collection

from servicekit.postgres import Database

# Workers are called anew whenever they start: those of yesterday go.
SEE_WORKERS = """
WITH gone AS (
    DELETE FROM generation.worker
     WHERE seen_at < now() - interval '1 day'
       AND worker_id <> ALL($1::text[])
)
INSERT INTO generation.worker AS worker (worker_id)
SELECT unnest($1::text[])
    ON CONFLICT (worker_id) DO UPDATE
   SET seen_at = now()
"""


class WorkersStore:
    """The workers of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def see(self, worker_ids: Collection[str]) -> None:
        """Writes that workers are here now, each named once."""
        # Statements that take the rows of the same workers take them in the same order.
        await self._database.execute(SEE_WORKERS, sorted(worker_ids))
