"""Reads the key of a root's pseudonyms from the environment, and refuses any other key."""

import os
import socket

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import fingerprint
from surf2vec.trainer.errors import ConfigError

MIN_KEY_BYTES = 16


def read_user_key(root: Root, config: IngestConfig) -> bytes | None:
    """Return the key that the settings name, or None. Raises ConfigError when it is missing or not the root's."""
    name, key = config.user_key_env, look_up_key(config)
    catalog = read_catalog(root)
    known = catalog.user_key_fingerprint
    if not catalog.entries or known == (fingerprint(key) if key else None):
        return key
    if known is None:
        raise ConfigError(f"{root.path} has raw user ids: leave ingest.user_key_env out, or begin a new --root")
    other = f"the key in {name} is not the one that it was made with" if key else "no key is given"
    raise ConfigError(
        f"{root.path} has pseudonyms, and {other}: name the environment variable with the key with "
        "--set ingest.user_key_env=NAME, or begin a new --root"
    )


def check_fingerprint(config: IngestConfig, wanted: str | None) -> bytes | None:
    """Return the key in this process's environment, or None. Raises ConfigError unless it has the wanted fingerprint."""
    key = look_up_key(config)
    if (fingerprint(key) if key else None) != wanted:
        raise ConfigError(
            f"the key in {config.user_key_env} on {socket.gethostname()} is not that of the machine where the command was given: "
            "set it to the same key on every machine, before `ray start`"
        )
    return key


def look_up_key(config: IngestConfig) -> bytes | None:
    """Return the key in the variable that the settings name, or None. Raises ConfigError if it is not set or short."""
    name = config.user_key_env
    key = os.environb.get(name.encode()) if name else None
    if name and not key:
        raise ConfigError(
            f"ingest.user_key_env names the environment variable {name}, which is not set or empty on "
            f"{socket.gethostname()}: set it to the key"
        )
    if key and len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"the key in {name} has {len(key)} bytes, fewer than {MIN_KEY_BYTES}: all keys of that length can be tried; make one "
            "with `openssl rand -hex 32`, and keep it"
        )
    return key
