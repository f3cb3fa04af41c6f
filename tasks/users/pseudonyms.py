"""Pseudonyms: user ids as HMAC-SHA256 under a key that only an environment variable holds.

The root keeps the key's fingerprint, so that another key, or none, is refused before it makes of one person two.
"""

import hashlib
import hmac

_BLOCK_BYTES = 64
_LABEL = b"surf2vec user key\0"


def pseudonym(user_id: str, key: bytes) -> str:
    """The pseudonym of a user, 64 hex digits."""
    return hmac.new(key, user_id.encode(), hashlib.sha256).hexdigest()


def fingerprint(key: bytes) -> str:
    """What may be kept of a key, 16 hex digits: it tells keys apart and gives nothing away."""
    return hashlib.sha256(_LABEL + key).hexdigest()[:16]


def key_pads(key: bytes | None) -> dict[str, bytes | None]:
    """The two padded keys of HMAC, as parameters of int_source_users; nulls without a key."""
    if key is None:
        return {"inner_pad": None, "outer_pad": None}
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return {"inner_pad": bytes(byte ^ 0x36 for byte in block), "outer_pad": bytes(byte ^ 0x5C for byte in block)}
