"""From the store to files of vectors and an index."""
