"""The project's folder: its lock, the record of a run, where it publishes, how much memory there is."""
