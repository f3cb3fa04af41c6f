"""Queries of a release: similar users, what is known of one user, vectors of new users."""
