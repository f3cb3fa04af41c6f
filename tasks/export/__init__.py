"""From the store to files of vectors, an index and the changes since the release before."""
