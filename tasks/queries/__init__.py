"""Questions about a release: similar users, one user explained, new users inferred."""
