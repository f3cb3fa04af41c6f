"""The vectors in the stores that serve. A push writes what differs, checks it, then switches readers."""
