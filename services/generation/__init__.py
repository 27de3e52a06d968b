"""The generation service: the external generation queue, its workers, and the wallet."""
