"""Pseudonyms: user ids as HMAC-SHA256 under a key that only an environment variable holds.

The root keeps the key's fingerprint, so that another key, or none, is refused before it makes of one person two.
"""

import hashlib
import hmac
import os
import socket

from tasks.config import IngestConfig
from tasks.run import Root
from tasks.sources import Catalog, read_catalog
from trainer.errors import ConfigError

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


def read_user_key(root: Root, config: IngestConfig) -> bytes | None:
    """The key that the settings name, or None. Raises ConfigError when it is not there, or not the root's."""
    return check_user_key(root, read_catalog(root), config)


def check_user_key(root: Root, catalog: Catalog, config: IngestConfig) -> bytes | None:
    """As `read_user_key`, for a catalog that was read before."""
    name, key = config.user_key_env, _look_up_key(config)
    known = catalog.user_key_fingerprint
    if not catalog.entries or known == (fingerprint(key) if key else None):
        return key
    if known is None:
        raise ConfigError(
            f"{root.path} has raw user ids, and ingest.user_key_env asks for pseudonyms: leave it out, or begin a new --root"
        )
    if key is None:
        raise ConfigError(
            f"{root.path} has pseudonyms (key {known}): name the environment variable with the key with "
            "--set ingest.user_key_env=NAME"
        )
    raise ConfigError(
        f"the key in {name} (fingerprint {fingerprint(key)}) is not the one that {root.path} was made with ({known}): "
        "set the variable to that key, or begin a new --root"
    )


def check_fingerprint(config: IngestConfig, wanted: str | None) -> bytes | None:
    """The key in this process's environment, or None. Raises ConfigError unless it has the fingerprint that is wanted."""
    key = _look_up_key(config)
    found = fingerprint(key) if key else None
    if found != wanted:
        raise ConfigError(
            f"the key in {config.user_key_env} has the fingerprint {found} on {socket.gethostname()}, but {wanted} where the "
            "command was given: set it to the same key on every machine, before `ray start`"
        )
    return key


def _look_up_key(config: IngestConfig) -> bytes | None:
    """What the environment variable holds that the settings name. Raises ConfigError when it holds nothing."""
    name = config.user_key_env
    key = os.environb.get(name.encode()) if name else None
    if name and not key:
        raise ConfigError(
            f"ingest.user_key_env names the environment variable {name}, which is not set or empty on "
            f"{socket.gethostname()}: set it to the key"
        )
    return key
