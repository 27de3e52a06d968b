"""The SQL schemas of the suite."""

from gateway.migrations import SCHEMA as GATEWAY
from services.canvas.migrations import SCHEMA as CANVAS
from services.generation.migrations import SCHEMA as GENERATION
from services.tasks.migrations import SCHEMA as TASKS

SCHEMAS = [GATEWAY, CANVAS, TASKS, GENERATION]
