"""The history of the SQL schema `canvas`."""

from pathlib import Path

from servicekit.migrations import Schema

SCHEMA = Schema("canvas", Path(__file__).parent)
