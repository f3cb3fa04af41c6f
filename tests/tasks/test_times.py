"""What numbers count, by their size."""

import pytest

from tasks.times import scale_of


@pytest.mark.parametrize(
    ("median", "kind"),
    [
        (0, "order"), (99_999_999, "order"), (100_000_000, "seconds"), (807_256_800, "seconds"), (1_782_907_200, "seconds"),
        (99_999_999_999, "seconds"), (1_782_907_200_000, "milliseconds"), (1_782_907_200_000_000, "microseconds"),
        (1_782_907_200_000_000_000, "nanoseconds"),
    ],
)  # fmt: skip
def test_scale(median: float, kind: str) -> None:
    scale = scale_of(median)
    assert scale.kind == kind
    assert scale.is_dated == (kind != "order")
