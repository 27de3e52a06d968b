"""Built-in models that need no network, and really write and draw."""
