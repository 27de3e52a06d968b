"""The history of the SQL schema `gateway`."""

from pathlib import Path

from servicekit.migrations import Schema

SCHEMA = Schema("gateway", Path(__file__).parent)
