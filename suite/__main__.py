"""`python -m suite` is the `gesso` command."""

from suite.cli import main

main()
