"""Remembers money: the ledger, and each account's balance beside it."""

from dataclasses import dataclass, fields
from datetime import timedelta

from servicekit.pages import NEWEST_KEY
from servicekit.postgres import Connection, Database
from services.generation.domain.money import Entry, Grant

# Longer than any transaction takes that writes an entry.
SETTLED = timedelta(minutes=1)

ENTRY_COLUMNS = ", ".join(field.name for field in fields(Entry))

MAKE_ACCOUNT = """
INSERT INTO generation.account (account_id)
VALUES ($1)
    ON CONFLICT (account_id) DO NOTHING
"""

# Alone in its statement: a statement that waited for the lock sees what was before it.
LOCK_ACCOUNT = """
SELECT balance_micros
  FROM generation.account
 WHERE account_id = $1
   FOR UPDATE
"""

GRANT = f"""
WITH entry AS (
    INSERT INTO generation.ledger
           (account_id, kind, delta_micros, balance_after_micros, reference)
    VALUES ($1, 'grant', $2, $3::bigint + $2, $4)
        ON CONFLICT (reference) DO NOTHING
    RETURNING {ENTRY_COLUMNS}
), credited AS (
    UPDATE generation.account
       SET balance_micros = $3::bigint + $2
     WHERE account_id = $1
       AND EXISTS (SELECT FROM entry)
)
SELECT {ENTRY_COLUMNS}
  FROM entry
"""

READ_ENTRY_OF_REFERENCE = f"""
SELECT {ENTRY_COLUMNS}
  FROM generation.ledger
 WHERE reference = $1
"""

READ_BALANCE = """
SELECT balance_micros
  FROM generation.account
 WHERE account_id = $1
"""

READ_ENTRIES_OF_JOB = f"""
SELECT {ENTRY_COLUMNS}
  FROM generation.ledger
 WHERE reference = ANY(ARRAY['job:' || $1::text, 'refund:' || $1::text])
"""

CHARGE = f"""
WITH charged AS (
    UPDATE generation.account
       SET balance_micros = balance_micros - $3::bigint
     WHERE account_id = $1
    RETURNING balance_micros
)
INSERT INTO generation.ledger
       (account_id, kind, delta_micros, balance_after_micros, reference, entry_id)
SELECT $1, 'charge', -$3::bigint, balance_micros, 'job:' || $2::text, $4
  FROM charged
RETURNING {ENTRY_COLUMNS}
"""

# Entries that are not what the one before and they themselves make, and accounts whose balance is
# not what their newest entry says. An account's entries are written in turn, but those of others
# may come late: from the first that is too young on they are looked at the next time.
AUDIT = f"""
WITH page AS (
    SELECT *
      FROM generation.ledger
     WHERE key > $1
     ORDER BY key
     LIMIT $2
), entry AS (
    SELECT key, account_id, delta_micros, balance_after_micros,
           coalesce((SELECT before.balance_after_micros
                       FROM generation.ledger AS before
                      WHERE before.account_id = entry.account_id
                        AND before.key < entry.key
                      ORDER BY before.key DESC
                      LIMIT 1), 0) AS before_micros
      FROM page AS entry
     WHERE key < coalesce((SELECT min(key) FROM page WHERE created_at > now() - $3::interval),
                          {NEWEST_KEY})
), unlike AS (
    SELECT account_id
      FROM entry
     WHERE balance_after_micros <> before_micros + delta_micros
    UNION ALL
    SELECT account_id
      FROM (SELECT DISTINCT account_id FROM entry) AS touched
     WHERE (SELECT balance_micros
              FROM generation.account
             WHERE account.account_id = touched.account_id)
        <> (SELECT balance_after_micros
              FROM generation.ledger
             WHERE ledger.account_id = touched.account_id
             ORDER BY key DESC
             LIMIT 1)
)
SELECT count(*) AS entries,
       max(key) AS last,
       ARRAY(SELECT account_id FROM unlike) AS wrong
  FROM entry
"""

LIST_ENTRIES = f"""
SELECT {ENTRY_COLUMNS}
  FROM generation.ledger
 WHERE account_id = $1
   AND key < $2
 ORDER BY key DESC
 LIMIT $3
"""


def refunds(ended: str) -> str:
    """The CTEs that give back the price of each job of the CTE `ended`, in the same statement.

    `ended` has (key, job_id, account_id, price_micros); `refunded` tells the entry of each job by
    key. Accounts are locked in order, so that two such statements never wait for one another. A
    row that another transaction changed is read anew with the rows that it was joined to, so those
    are joined, not selected from inside an expression.
    """
    return f"""
owed AS (
    SELECT account_id
      FROM generation.account
     WHERE account_id = ANY(ARRAY(SELECT account_id FROM {ended}))
     ORDER BY account_id
       FOR NO KEY UPDATE
), refund AS (
    SELECT account_id, sum(price_micros)::bigint AS total_micros
      FROM {ended}
     GROUP BY account_id
), credited AS (
    UPDATE generation.account AS account
       SET balance_micros = account.balance_micros + refund.total_micros
      FROM refund
     WHERE account.account_id = refund.account_id
       AND account.account_id = ANY(ARRAY(SELECT account_id FROM owed))
    RETURNING account.account_id, account.balance_micros - refund.total_micros AS before_micros
), entry AS (
    INSERT INTO generation.ledger
           (account_id, kind, delta_micros, balance_after_micros, reference)
    SELECT {ended}.account_id,
           'refund',
           {ended}.price_micros,
           credited.before_micros + (sum({ended}.price_micros) OVER earlier)::bigint,
           'refund:' || {ended}.job_id
      FROM {ended}
      JOIN credited ON credited.account_id = {ended}.account_id
    WINDOW earlier AS (PARTITION BY {ended}.account_id ORDER BY {ended}.key)
     ORDER BY {ended}.key
    RETURNING entry_id, reference
), refunded AS (
    SELECT {ended}.key, entry.entry_id
      FROM {ended}
      JOIN entry ON entry.reference = 'refund:' || {ended}.job_id
)"""


REFUND = f"""
WITH charge AS (
    SELECT key, $1::text AS job_id, account_id, -delta_micros AS price_micros
      FROM generation.ledger
     WHERE reference = 'job:' || $1::text
), {refunds("charge")}
SELECT entry_id
  FROM refunded
"""


@dataclass(frozen=True)
class Audited:
    """How many entries were looked at, the key of the last, and whose money does not add up."""

    entries: int
    last: int | None
    wrong: list[str]


class WalletStore:
    """The money of all accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(self, grant: Grant) -> Entry | None:
        """The new entry, or None if the reference has one already."""
        async with self._database.transaction() as connection:
            await connection.execute(MAKE_ACCOUNT, grant.account_id)
            balance = await locked_balance(connection, grant.account_id)
            row = await connection.fetchrow(
                GRANT, grant.account_id, grant.amount_micros, balance, grant.reference
            )
        return Entry(**row) if row else None

    async def entry_of(self, reference: str) -> Entry | None:
        """The entry of a reference."""
        row = await self._database.fetchrow(READ_ENTRY_OF_REFERENCE, reference)
        return Entry(**row) if row else None

    async def audit(self, after: int, limit: int, *, settled: timedelta = SETTLED) -> Audited:
        """Looks at up to `limit` entries after a key that were written so long ago."""
        row = await self._database.fetchrow(AUDIT, after, limit, settled)
        assert row is not None
        return Audited(**row)

    async def page(self, account_id: str, before: int, limit: int) -> tuple[int, list[Entry]]:
        """The balance, and up to `limit` entries with keys below `before`, newest first."""
        async with self._database.transaction(isolation="repeatable_read") as connection:
            balance = await connection.fetchval(READ_BALANCE, account_id)
            rows = await connection.fetch(LIST_ENTRIES, account_id, before, limit)
        return balance or 0, [Entry(**row) for row in rows]


async def locked_balance(connection: Connection, account_id: str) -> int | None:
    """The balance, which nobody else changes in this transaction; None without an account."""
    balance: int | None = await connection.fetchval(LOCK_ACCOUNT, account_id)
    return balance


async def entries_of_job(connection: Connection, job_id: str) -> dict[str, Entry]:
    """Charge and refund of a job, as far as there are any, by their kinds."""
    rows = await connection.fetch(READ_ENTRIES_OF_JOB, job_id)
    return {row["kind"]: Entry(**row) for row in rows}


async def charge(
    connection: Connection, account_id: str, job_id: str, price_micros: int, *, entry_id: str
) -> Entry:
    """Charges a locked account for a job without a row."""
    row = await connection.fetchrow(CHARGE, account_id, job_id, price_micros, entry_id)
    assert row is not None
    return Entry(**row)


async def refund(connection: Connection, job_id: str) -> str:
    """Gives back what a job without a row was charged to a locked account; the entry's id."""
    entry_id: str = await connection.fetchval(REFUND, job_id)
    return entry_id
