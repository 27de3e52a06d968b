"""The SQL schemas of the suite."""

from services.canvas.migrations import SCHEMA as CANVAS

SCHEMAS = [CANVAS]
