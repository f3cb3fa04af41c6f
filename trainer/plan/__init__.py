"""The plan of a training: schedule, shares of workers, and memory. Pure functions."""
