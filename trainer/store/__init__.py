"""Vectors and tokens on disk, committed in generations."""
