"""Who trains what, when, and in how many bytes: pure."""
