"""Keeps passwords out of messages, manifests and the registry: a URI may contain `user:password@`."""

import re
from collections.abc import Callable
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def mask_credentials(text: str) -> str:
    """Return the text with `user:password@` of every URI replaced by `***@`."""
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
