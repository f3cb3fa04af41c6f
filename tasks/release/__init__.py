"""Reads a release: the same module in commands, in Python and in the registered model."""
