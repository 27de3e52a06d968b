"""The browser's door: HTTP, SSE and WebSocket in front of the services."""
