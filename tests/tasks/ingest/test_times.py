"""What numbers count, by their size."""

import pytest
from pydantic import ValidationError

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.times import explain_bad_times, guess_formats, scale_of


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


@pytest.mark.parametrize(
    ("times", "formats"),
    [
        (["01.11.2026 08:21", "13.11.2026 09:00"], ["%d.%m.%Y %H:%M"]),
        (["01/11/2026 08:21:05"], ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"]),
        (["13/11/2026"], ["%d/%m/%Y"]),
        (["11/13/2026 08:21 PM"], ["%m/%d/%Y %I:%M %p"]),
        (["01.11.2026", "x"], []),
        ([], []),
    ],
)
def test_formats_that_fit(times: list[str], formats: list[str]) -> None:
    assert guess_formats(times) == formats


def test_what_is_said_of_times_that_cannot_be_read() -> None:
    assert explain_bad_times(["01.11.2026 08:21"], ()) == (
        "the first times that could not be read: '01.11.2026 08:21'; say how they are written with "
        "--set 'ingest.time_format=%d.%m.%Y %H:%M'"
    )
    told = explain_bad_times(["ann@example.com", "\x1b[2J" + "x" * 99], ("%d.%m.%Y",))
    assert told.startswith(
        "the first times that could not be read by ingest.time_format (%d.%m.%Y): (not shown: no time), '\\x1b[2J"
    )
    assert len(told) < 300


def test_a_format_that_cannot_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError, match="%Q: Unrecognized format"):
        IngestConfig(time_format=("%d.%m.%Y", "%d.%Q"))
