"""Speaks gesso.wallet.v1: messages into values and back."""

from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import WalletServiceServicer

from servicekit.identity import Context, account_of
from servicekit.pages import page_of, page_size, place_from_token
from servicekit.times import timestamp_from_time
from services.generation.domain.money import Entry, Grant
from services.generation.domain.prices import PRICES
from services.generation.wallet import WalletService


class WalletRpc(WalletServiceServicer):
    """The wallets as gRPC."""

    def __init__(self, service: WalletService) -> None:
        self._service = service

    async def GetWallet(
        self, request: wallet_pb2.GetWalletRequest, context: Context
    ) -> wallet_pb2.GetWalletResponse:
        """See wallet.proto."""
        size = page_size(request.page_size)
        (before,) = place_from_token(request.page_token)
        balance, found = await self._service.page(account_of(context), before, size + 1)
        shown, next_page_token = page_of(found, size, lambda entry: (entry.key,))
        return wallet_pb2.GetWalletResponse(
            balance_micros=balance,
            entries=map(proto_from_entry, shown),
            next_page_token=next_page_token,
        )

    async def Grant(
        self, request: wallet_pb2.GrantRequest, context: Context
    ) -> wallet_pb2.GrantResponse:
        """See wallet.proto."""
        grant = Grant(
            account_id=account_of(context),
            amount_micros=request.amount_micros,
            reference=request.reference,
        )
        return wallet_pb2.GrantResponse(entry=proto_from_entry(await self._service.grant(grant)))

    async def ListPrices(
        self, request: wallet_pb2.ListPricesRequest, context: Context
    ) -> wallet_pb2.ListPricesResponse:
        """See wallet.proto."""
        return wallet_pb2.ListPricesResponse(
            prices=[
                wallet_pb2.Price(kind=price.kind, model=price.model, unit_micros=price.unit_micros)
                for price in PRICES
            ]
        )


def proto_from_entry(entry: Entry) -> wallet_pb2.Entry:
    """A line of a ledger as a message."""
    return wallet_pb2.Entry(
        entry_id=entry.entry_id,
        kind=entry.kind,
        delta_micros=entry.delta_micros,
        balance_after_micros=entry.balance_after_micros,
        reference=entry.reference,
        create_time=timestamp_from_time(entry.created_at),
    )
