"""`gesso db`."""

import asyncio
import os
import sys

from servicekit.errors import Failure
from servicekit.migrations import current, migrate
from suite.schemas import SCHEMAS

FAILED = 1
_ADVICE = (
    "GESSO_DATABASE_URL is not set: where PostgreSQL is. "
    "Example: GESSO_DATABASE_URL=postgresql://gesso:secret@db:5432/gesso\n"
)


def run_migrate() -> int:
    """Brings every schema to its newest revision; returns the exit code."""
    url = os.environ.get("GESSO_DATABASE_URL")
    if not url:
        sys.stderr.write(f"gesso db migrate: {_ADVICE}")
        return FAILED
    try:
        changed = asyncio.run(migrate(url, SCHEMAS))
    except Failure as failure:
        sys.stderr.write(f"gesso db migrate: {failure.detail}\n")
        return FAILED
    for schema in SCHEMAS:
        how = "brought to" if schema.name in changed else "is at"
        sys.stdout.write(f"{schema.name} {how} {schema.head()}\n")
    return 0


def run_status() -> int:
    """Says where every schema is; returns 1 if one is behind."""
    url = os.environ.get("GESSO_DATABASE_URL")
    if not url:
        sys.stderr.write(f"gesso db status: {_ADVICE}")
        return FAILED
    try:
        found = asyncio.run(current(url, SCHEMAS))
    except Failure as failure:
        sys.stderr.write(f"gesso db status: {failure.detail}\n")
        return FAILED
    behind = False
    for schema in SCHEMAS:
        at, head = found[schema.name] or "nothing", schema.head()
        behind = behind or at != head
        sys.stdout.write(f"{schema.name} is at {at}, newest is {head}\n")
    return FAILED if behind else 0
