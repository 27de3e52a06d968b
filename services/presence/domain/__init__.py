"""What is true of rooms, whoever is connected and however it is told."""
