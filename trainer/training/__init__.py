"""The training loop, its slots and its engines."""
