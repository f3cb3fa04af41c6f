"""SQL files, one `select` a step, and the runner that binds their parameters."""
