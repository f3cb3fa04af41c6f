"""Who a user is: placement, pseudonyms, tombstones, and the users that a call is for."""
