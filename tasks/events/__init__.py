"""Events on disk, and strings as numbers."""
