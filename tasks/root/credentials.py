"""Keeps passwords out of messages, manifests and the registry: a URI may contain `user:password@`, and an error a password."""

import os
import re
from collections.abc import Callable
from typing import Any

# After a colon the password, up to the last @, as it may have a slash in it.
_CREDENTIALS = re.compile(r"(?<=://)(?:[^/@\s]+|[^/@\s:]*:[^\s\"']*)@")
_SECRETS = (
    "PGPASSWORD",
    "QDRANT_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
)
_MIN_SECRET = 6  # characters; shorter ones would be found in ordinary words


def mask_credentials(text: str) -> str:
    """Return the text with `user:password@` of every URI replaced by `***@`, and the passwords of the environment by `***`."""
    for value in filter(None, map(os.environ.get, _SECRETS)):
        text = text.replace(value, "***") if len(value) >= _MIN_SECRET else text
    return _CREDENTIALS.sub("***@", text)


def strip_credentials(uri: str) -> str:
    return _CREDENTIALS.sub("", uri)


def map_texts(change: Callable[[str], str], value: Any) -> Any:
    """Return a JSON value with every text in it changed."""
    if isinstance(value, dict):
        return {name: map_texts(change, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(change, one) for one in value]
    return change(value) if isinstance(value, str) else value


def mask_values(value: Any) -> Any:
    """Return a JSON value with the credentials in its texts masked."""
    return map_texts(mask_credentials, value)
