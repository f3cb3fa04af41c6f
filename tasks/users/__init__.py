"""Who a user is: pseudonyms, tombstones, and the users that a call is for."""
