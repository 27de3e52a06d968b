"""Who has a canvas open, where their cursors are, and that something changed."""
