"""The first credits of new accounts, from the gateway to the wallet."""

from collections.abc import AsyncIterator

import pytest

from gateway.accounts_store import AccountsStore
from gateway.grants import Grants
from servicekit import client, postgres
from servicekit.identity import Behalf
from servicekit.postgres import DatabaseSettings
from tests.support.generation import CREDIT, House, Person, house
from tests.support.services import NOWHERE, TOKEN


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    async with house(database, objects_url) as services:
        yield services


@pytest.fixture
async def store(database: str) -> AsyncIterator[AccountsStore]:
    """The accounts, of which there is one: us_anna."""
    settings = DatabaseSettings(database_url=database)
    async with postgres.connected(settings, application="tests") as connected:
        accounts = AccountsStore(connected)
        await accounts.add_account("us_anna", email="anna@example.com", name="", password_hash="")
        yield accounts


@pytest.fixture
def anna(home: House) -> Person:
    return Person(home, Behalf(account_id="us_anna"))


async def test_credits_that_the_wallet_could_not_give_come_later_and_once(
    home: House, store: AccountsStore, anna: Person
) -> None:
    """GN15"""
    async with client.connected(NOWHERE, caller="tests", tokens=(TOKEN,)) as nobody:
        await Grants(store, nobody, 1_000).now("us_anna")
    waiting = await store.without_grant(10)

    for _ in range(2):
        await Grants(store, home.generation, 1_000).late()
        await Grants(store, home.generation, 1_000).now("us_anna")

    assert waiting == ["us_anna"]
    assert await store.without_grant(10) == []
    assert await anna.balance() == 1_000


async def test_who_has_had_other_credits_does_not_wait_for_ever(
    home: House, store: AccountsStore, anna: Person
) -> None:
    """GN15"""
    await anna.grant(500, reference="signup:us_anna")

    await Grants(store, home.generation, 1_000).late()

    assert await store.without_grant(10) == []
    assert (await anna.wallet()).balance_micros == 500 * CREDIT
