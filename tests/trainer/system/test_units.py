"""Bytes as people write and read them."""

import pytest

from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.units import parse_bytes, size, two_sizes


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("512MiB", 2**29), ("1.5 kb", 1500), ("7", 7), ("12G", 12 * 10**9)]
)
def test_what_is_written(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-4GB", "4 elephants", "1e9", "four"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="write for instance 4GB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2 * 10**6, "2.0 MB"), (-4 * 10**9, "-4.0 GB")],
)
def test_what_is_read(num_bytes: int, expected: str) -> None:
    assert size(num_bytes) == expected


def test_what_does_not_suffice_is_never_written_as_what_there_is() -> None:
    assert two_sizes(1_004_000_000, 10**9) == ("1.004 GB", "1.000 GB")
    assert two_sizes(10**9 + 1, 10**9) == ("1.000000001 GB", "1.000000000 GB")
    assert two_sizes(2 * 10**9, 10**6) == ("2.0 GB", "1.0 MB")
