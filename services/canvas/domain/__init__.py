"""What is true of canvases, whoever asks and however it is stored."""
