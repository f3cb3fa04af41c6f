"""Formats and parses bytes as people write them: 4GB, 512MiB; 1.5 GB."""

import re

from surf2vec.trainer.errors import ConfigError

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def size(num_bytes: int, digits: int = 1) -> str:
    """Return bytes as text: `1.5 GB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:.{digits}f} {unit}"
    return f"{num_bytes} B"


def two_sizes(needed_bytes: int, available_bytes: int) -> tuple[str, str]:
    """Return two different sizes with so many digits that the texts differ, too: `1.004 GB`, `1.000 GB`."""
    pairs = ((size(needed_bytes, digits), size(available_bytes, digits)) for digits in range(1, 10))
    return next(pair for pair in pairs if pair[0] != pair[1] or needed_bytes == available_bytes)


def parse_bytes(text: str | int) -> int:
    """Return the bytes of `4GB`, `512MiB` or a plain number. Raises ConfigError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", str(text).lower())
    unit = match and (match[2] if match[2].endswith("b") or not match[2] else match[2] + "b")
    if not match or unit not in _UNITS:
        raise ConfigError(f"{text!r} is no size in bytes: write for instance 4GB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[unit])
