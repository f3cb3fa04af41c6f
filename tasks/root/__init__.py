"""The project's folder: its lock, the story of a run, where it publishes, how much memory there is."""
