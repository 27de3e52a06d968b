"""The browser's routes: requests into calls, answers into JSON."""
