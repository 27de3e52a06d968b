"""Tasks, their text as it comes, and the workers that do them."""
