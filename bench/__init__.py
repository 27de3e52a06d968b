"""What is measured, how, and the last numbers (RESULTS.md)."""
