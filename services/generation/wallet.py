"""What can be done with money."""

from servicekit.errors import IdempotencyKeyReused
from services.generation.domain.money import Entry, Grant
from services.generation.wallet_store import WalletStore


class WalletService:
    """The wallets of all accounts."""

    def __init__(self, store: WalletStore) -> None:
        self._store = store

    async def grant(self, grant: Grant) -> Entry:
        """Gives credits once for each reference (GN15). Raises `IdempotencyKeyReused`."""
        entry = await self._store.grant(grant) or await self._store.entry_of(grant.reference)
        assert entry is not None
        if not grant.is_that_of(entry):
            raise IdempotencyKeyReused
        return entry

    async def page(self, account_id: str, before: int, limit: int) -> tuple[int, list[Entry]]:
        """The balance, and up to `limit` entries with keys below `before`, newest first."""
        return await self._store.page(account_id, before, limit)
