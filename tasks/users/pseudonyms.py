"""Pseudonyms: user ids as HMAC-SHA256 under a key that only an environment variable holds.

The root keeps the key's fingerprint, so that another key, or none, is refused before it makes of one person two.
"""

import hashlib
import hmac

_LABEL = b"surf2vec user key\0"


def keyed_digest(user_id: str, key: bytes) -> bytes:
    """HMAC-SHA256 of a user's id."""
    return hmac.digest(key, user_id.encode(), "sha256")


def pseudonym(user_id: str, key: bytes) -> str:
    """The pseudonym of a user, 64 hex digits."""
    return keyed_digest(user_id, key).hex()


def fingerprint(key: bytes) -> str:
    """What may be kept of a key, 16 hex digits: it tells keys apart and gives nothing away."""
    return hashlib.sha256(_LABEL + key).hexdigest()[:16]
