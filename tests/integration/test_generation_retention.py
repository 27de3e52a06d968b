"""What is forgotten of jobs, and whether the money adds up, on real PostgreSQL."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from servicekit import postgres
from servicekit.postgres import Database, DatabaseSettings
from servicekit.telemetry import Metrics
from services.generation.retention_store import RetentionStore
from services.generation.sweeper import Sweeper
from services.generation.wallet_store import WalletStore
from tests.support.generation import Hand, House, Person, house

DAYS = timedelta(days=30)
TABLES = ("job", "summary", "payload", "outcome", "provider_call", "event")
# Whatever has a time of its own, a month older.
AGE = """
WITH summary AS (
    UPDATE generation.summary
       SET created_at = created_at - interval '31 days',
           ended_at = ended_at - interval '31 days'
     WHERE job_id = ANY($1)
)
UPDATE generation.claim SET created_at = created_at - interval '31 days'
"""


@pytest.fixture
async def home(database: str, objects_url: str) -> AsyncIterator[House]:
    """Services of its own for each test."""
    async with house(database, objects_url, running_limit=50) as services:
        yield services


@pytest.fixture
async def person(home: House) -> Person:
    """An account with a thousand credits."""
    person = home.person()
    await person.grant(1000)
    return person


@pytest.fixture
def hand(home: House) -> Hand:
    """A worker."""
    return home.hand()


@pytest.fixture
async def pool(home: House) -> AsyncIterator[Database]:
    """The database, as a service has it."""
    settings = DatabaseSettings(database_url=home.database_url)
    async with postgres.connected(settings, application="retention") as database:
        yield database


def _sweeper(pool: Database, metrics: Metrics | None = None) -> Sweeper:
    return Sweeper(RetentionStore(pool), WalletStore(pool), metrics or Metrics(), age=DAYS)


async def _ended(home: House, person: Person, hand: Hand, count: int = 1) -> list[str]:
    for _ in range(count):
        await person.enqueue(is_shown=False)
    jobs = await hand.claim(limit=count)
    for job in jobs:
        await hand.call(job, request_id="p")
    await hand.complete(*jobs)
    ids = [job.job_id for job in jobs]
    await home.execute(
        "UPDATE generation.provider_call SET outcome = 'succeeded', settled_at = now()"
    )
    return ids


async def _kept(home: House, table: str) -> int:
    return len(await home.fetch(f"SELECT FROM generation.{table}"))


async def test_jobs_that_ended_long_ago_are_forgotten_whole_and_their_money_is_not(
    home: House, person: Person, hand: Hand, pool: Database
) -> None:
    """GN32"""
    old = await _ended(home, person, hand, 3)
    young = await _ended(home, person, hand, 1)
    entries = await _kept(home, "ledger")
    await home.execute(AGE, old)
    sweeper = _sweeper(pool)

    assert not await sweeper.forget_jobs()
    assert not await sweeper.forget_claims()

    assert [job.job_id for job in (await person.jobs()).jobs] == young
    assert [await _kept(home, table) for table in TABLES[:5]] == [1] * 5
    assert {row[0] for row in await home.fetch("SELECT job_key FROM generation.event")} == {
        row[0] for row in await home.fetch("SELECT key FROM generation.job")
    }
    assert await _kept(home, "claim") == 0
    assert await _kept(home, "ledger") == entries
    assert await person.balance() == 1000 - 4 * 4


async def test_what_waits_runs_is_on_its_way_or_uncertain_is_kept_however_old(
    home: House, person: Person, hand: Hand, pool: Database
) -> None:
    """GN32"""
    running = (await person.enqueue(is_shown=False)).job.job_id
    await hand.claim()
    uncertain = (await person.enqueue(is_shown=False)).job.job_id
    (job,) = await hand.claim()
    await hand.call(job)
    await person.cancel(uncertain)
    waiting = (await person.enqueue(is_shown=False)).job.job_id
    marked = (await person.enqueue(node_id="n1")).job.job_id
    await home.execute(
        "UPDATE generation.job SET deliver_at = 'infinity', status = 'delivering', attempt = 1"
        " WHERE job_id = $1",
        marked,
    )
    kept = [running, uncertain, waiting, marked]
    await home.execute(AGE, kept)

    assert not await _sweeper(pool).forget_jobs()

    assert {row[0] for row in await home.fetch("SELECT job_id FROM generation.job")} == set(kept)


async def test_a_long_history_is_forgotten_in_batches_and_begun_again(
    home: House, pool: Database
) -> None:
    """GN32"""
    await home.execute(
        "INSERT INTO generation.summary (job_id, account_id, kind, source, label, status,"
        " price_micros, canvas_id, created_at, ended_at, job_key)"
        " SELECT n::text, 'a', 'k', 's', 'l', 'completed', 1, 'c', now() - interval '40 days',"
        "        now() - interval '40 days', n FROM generate_series(1, 1200) AS n"
    )
    await home.execute(
        "INSERT INTO generation.job (job_id, account_id, dedupe_key, kind, canvas_id, delivers,"
        " max_attempts, attempt, price_micros, status, key) OVERRIDING SYSTEM VALUE"
        " SELECT n::text, 'a', n::text, 'k', 'c', false, 1, 1, 1, 'completed', n"
        "   FROM generate_series(1, 1200) AS n"
    )
    sweeper = _sweeper(pool)

    assert [await sweeper.forget_jobs() for _ in range(7)] == [True] * 6 + [False]
    assert (await _kept(home, "summary"), await _kept(home, "job")) == (0, 0)


async def test_money_that_does_not_add_up_is_found_and_counted(
    home: House, person: Person, hand: Hand, pool: Database
) -> None:
    """GN33"""
    await _ended(home, person, hand, 2)
    other = home.person()
    await other.grant(7)
    wallets = WalletStore(pool)
    now = timedelta(0)
    assert (await wallets.audit(0, 100, settled=now)).wrong == []

    await home.execute(
        "UPDATE generation.ledger SET balance_after_micros = balance_after_micros + 1"
        " WHERE key = (SELECT min(key) + 1 FROM generation.ledger WHERE account_id = $1)",
        person.account_id,
    )
    await home.execute(
        "UPDATE generation.account SET balance_micros = 1 WHERE account_id = $1", other.account_id
    )
    audited = await wallets.audit(0, 100, settled=now)
    await home.execute("UPDATE generation.ledger SET created_at = created_at - interval '1 hour'")
    metrics = Metrics()
    await _sweeper(pool, metrics).audit()

    # The entry itself, the one after it, and the balance of the other.
    assert sorted(audited.wrong) == sorted([person.account_id, person.account_id, other.account_id])
    assert metrics.registry.get_sample_value("gesso_wallet_mismatches_total") == 3
    assert audited.entries == 4


async def test_from_the_first_young_entry_on_everything_is_left_for_the_next_look(
    home: House, person: Person, pool: Database
) -> None:
    """GN33"""
    for _ in range(2):
        await person.grant(1)
    await home.execute(
        "UPDATE generation.ledger SET created_at = created_at - interval '1 hour'"
        " WHERE key <> (SELECT min(key) + 1 FROM generation.ledger)"
    )

    audited = await WalletStore(pool).audit(0, 100)

    assert audited.entries == 1


async def test_entries_of_the_last_minute_are_left_for_the_next_look(
    person: Person, pool: Database
) -> None:
    """GN33"""
    assert person.account_id
    audited = await WalletStore(pool).audit(0, 100)

    assert (audited.entries, audited.last) == (0, None)
