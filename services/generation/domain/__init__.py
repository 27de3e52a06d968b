"""What is true of jobs, money and results, whoever asks."""
