"""`gesso db`."""

import asyncio
import os
import sys

from servicekit.errors import Failure
from servicekit.migrations import current, migrate
from servicekit.postgres import DatabaseSettings
from servicekit.settings import WrongSettings, load
from suite.schemas import SCHEMAS

FAILED = 1


def run_migrate() -> int:
    """Brings every schema to its newest revision; returns the exit code."""
    try:
        changed = asyncio.run(migrate(_url(), SCHEMAS))
    except (Failure, WrongSettings) as error:
        sys.stderr.write(f"gesso db migrate: {error}\n")
        return FAILED
    for schema in SCHEMAS:
        how = "brought to" if schema.name in changed else "is at"
        sys.stdout.write(f"{schema.name} {how} {schema.head()}\n")
    return 0


def run_status() -> int:
    """Says where every schema is; returns 1 if one is behind."""
    try:
        found = asyncio.run(current(_url(), SCHEMAS))
    except (Failure, WrongSettings) as error:
        sys.stderr.write(f"gesso db status: {error}\n")
        return FAILED
    behind = False
    for schema in SCHEMAS:
        at, head = found[schema.name] or "nothing", schema.head()
        behind = behind or at != head
        sys.stdout.write(f"{schema.name} is at {at}, newest is {head}\n")
    return FAILED if behind else 0


def _url() -> str:
    return load(DatabaseSettings, "db", os.environ).database_url
