"""Pseudonyms: user ids as HMAC-SHA256 under a key that only an environment variable holds.

The root stores the key's fingerprint: another key, or none, would give one person two names and is refused.
"""

import hashlib
import hmac

_LABEL = b"surf2vec user key\0"


def keyed_digest(user_id: str, key: bytes) -> bytes:
    """Return the HMAC-SHA256 of a user's id."""
    return hmac.digest(key, user_id.encode(), "sha256")


def pseudonym(user_id: str, key: bytes) -> str:
    """Return the pseudonym of a user, 64 hex digits."""
    return keyed_digest(user_id, key).hex()


def fingerprint(key: bytes) -> str:
    """Return a key's fingerprint, 16 hex digits: it distinguishes keys without revealing them."""
    return hashlib.sha256(_LABEL + key).hexdigest()[:16]
