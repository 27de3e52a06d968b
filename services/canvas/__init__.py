"""Canvases, resources and assets."""
