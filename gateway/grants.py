"""Has the wallet give new accounts their first credits, and tries again until it has."""

import asyncio
from contextlib import AbstractAsyncContextManager

import grpc
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import WalletServiceStub

from gateway.accounts_store import AccountsStore
from gateway.credits import micros_from_credits
from servicekit.background import background
from servicekit.client import Client
from servicekit.errors import Conflict, Failure, IdempotencyKeyReused
from servicekit.identity import Behalf
from servicekit.telemetry import logger, pseudonym

AGAIN_SECONDS = 15.0
CALL_SECONDS = 3.0
BATCH = 100

_log = logger("gateway.grants")


class Grants:
    """The first credits of new accounts."""

    def __init__(self, store: AccountsStore, generation: Client, credits_: int) -> None:
        self._store = store
        self._generation = generation
        self._stub = WalletServiceStub(generation.channel)
        self._micros = micros_from_credits(credits_)

    async def now(self, account_id: str) -> None:
        """Gives an account its first credits, once however often this is called.

        While the wallet is away the credits come later; an account is worth having without.
        """
        try:
            if self._micros > 0:
                await self._grant(account_id)
            await self._store.mark_granted(account_id)
        except (Failure, grpc.aio.AioRpcError) as error:
            _log.warning("first credits are late", account=pseudonym(account_id), why=str(error))

    async def _grant(self, account_id: str) -> None:
        request = wallet_pb2.GrantRequest(
            amount_micros=self._micros, reference=f"signup:{account_id}"
        )
        behalf = Behalf(account_id=account_id)
        try:
            await self._generation.call(self._stub.Grant, request, behalf, seconds=CALL_SECONDS)
        except Conflict as conflict:
            # It has them, of another amount: the setting has changed since.
            if conflict.machine_word != IdempotencyKeyReused.reason:
                raise

    async def late(self) -> None:
        """Gives credits to the accounts that still wait for them."""
        for account_id in await self._store.without_grant(BATCH):
            await self.now(account_id)


def granting(grants: Grants) -> AbstractAsyncContextManager[None]:
    """Looks after late credits now and then, inside the block."""
    return background(_look_after(grants))


async def _look_after(grants: Grants) -> None:
    while True:
        try:
            await grants.late()
        except Failure as failure:
            _log.warning("late credits are not looked after", why=str(failure))
        await asyncio.sleep(AGAIN_SECONDS)
