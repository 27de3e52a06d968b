"""The history of the SQL schema `generation`."""

from pathlib import Path

from servicekit.migrations import Schema

SCHEMA = Schema("generation", Path(__file__).parent)
