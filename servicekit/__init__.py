"""What two services need and no service owns."""
