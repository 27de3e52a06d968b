"""The history of the SQL schema `tasks`."""

from pathlib import Path

from servicekit.migrations import Schema

SCHEMA = Schema("tasks", Path(__file__).parent)
