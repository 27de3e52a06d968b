"""What the windows of this gateway see of one another, and of those at other gateways."""
