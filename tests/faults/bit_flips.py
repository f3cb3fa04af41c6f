"""One flipped bit at seeded random places of a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def draw_places(path: Path, num: int, seed: int = 0) -> list[tuple[int, int]]:
    """(byte, bit) of `num` places in a file."""
    rng = np.random.default_rng([seed, len(path.name)])
    return list(
        zip(rng.integers(path.stat().st_size, size=num).tolist(), rng.integers(8, size=num).tolist(), strict=True)
    )


@contextmanager
def flipped(path: Path, place: tuple[int, int]) -> Iterator[None]:
    """The file with that bit flipped, while the block runs."""
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[place[0]] ^= 1 << place[1]
    path.write_bytes(altered)
    try:
        yield
    finally:
        path.write_bytes(whole)
