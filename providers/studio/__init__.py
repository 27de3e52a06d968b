"""Built-in models that need no network."""
