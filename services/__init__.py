"""The services, one folder each; none imports another."""
