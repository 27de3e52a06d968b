"""The real canvas service for properties of whole histories."""

from tests.integration.conftest import canvas, objects_url

__all__ = ["canvas", "objects_url"]
