"""The steps of a run: each a pure function and a thin shell that reads and writes files."""
