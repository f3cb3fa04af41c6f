"""The third part of a vector: how much, how often and when a user was there."""
