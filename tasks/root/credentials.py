"""Keeps passwords out of messages, manifests and the registry: a URI may carry `user:password@`."""

import re
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def mask_credentials(text: str) -> str:
    """The text with `user:password@` of any URI in it replaced by `***@`."""
    return _CREDENTIALS.sub("***@", text)


def strip_credentials(uri: str) -> str:
    """The URI without `user:password@`."""
    return _CREDENTIALS.sub("", uri)


def mask_values(value: Any) -> Any:
    """A JSON value with the credentials in its texts masked."""
    if isinstance(value, dict):
        return {name: mask_values(one) for name, one in value.items()}
    if isinstance(value, list):
        return [mask_values(one) for one in value]
    return mask_credentials(value) if isinstance(value, str) else value
