"""What is true of tasks and their text, whoever asks."""
