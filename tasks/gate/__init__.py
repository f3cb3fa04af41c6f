"""Whether a release may serve: the rules and the figures they look at."""
