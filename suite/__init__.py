"""The `gesso` command."""
