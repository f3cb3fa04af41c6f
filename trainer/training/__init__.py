"""The training loop, its chunks and its engines."""
