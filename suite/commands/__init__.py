"""The `gesso` commands, one module each."""
