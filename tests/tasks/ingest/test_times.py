"""What numbers count, by their size."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.times import explain_bad_times, guess_formats, scale_of
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import read_events, take_in, write_log


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
    assert scale.unit == kind
    assert scale.is_dated == (kind != "order")


NOW = datetime(2026, 11, 28)
MINUTES = [datetime(2026, 11, 2, 9) + timedelta(minutes=number) for number in range(24)]


def since(year: int, times: float, *day: int) -> Callable[[datetime], str]:
    return lambda time: str(round((time - datetime(year, *(day or (1, 1)))).total_seconds() * times))


def days(time: datetime) -> str:
    return f"{(time - datetime(1899, 12, 30)) / timedelta(days=1):.10f}"


@pytest.mark.parametrize(
    ("write", "unit"),
    [
        (since(1601, 1e7), "filetime"), (since(1601, 1e6), "webkit"), (since(1, 1e7), "ticks"), (days, "days"),
        (lambda time: days(time).replace(".", ","), "days"), (since(2001, 1), "cocoa"),
        (since(2001, 1e9), "nanoseconds since 2001-01-01"), (since(1900, 1), "seconds since 1900-01-01"),
        (since(1970, 1 / 86400), "days since 1970-01-01"),
    ],
)  # fmt: skip
def test_times_of_another_unit_are_refused_and_the_setting_to_paste_reads_them(
    tmp_path: Path, write: Callable[[datetime], str], unit: str
) -> None:
    """In no case is the size of a number taken for a unit that makes other times of it."""
    log = write_log(tmp_path / "a.csv", *(f'u{time.minute % 6},/a,"{write(time)}"' for time in MINUTES))
    with pytest.raises(InputError, match=r"a\.csv \('.*cannot be right") as caught:
        take_in(tmp_path / "root", log)
    settings = re.findall(r"'ingest\.time_unit=([^']+)' \(from 2026-11-02", str(caught.value))
    assert settings == [unit]
    assert not (tmp_path / "root" / "sources.json").exists()
    take_in(tmp_path / "root", log, time_unit=unit)
    times = [ts for _, _, ts, _ in read_events(tmp_path / "root")]
    has_minutes = "1970" not in unit
    assert sorted(times) == (MINUTES if has_minutes else [datetime(2026, 11, 2)] * len(MINUTES))


@pytest.mark.parametrize(
    ("times", "fault"),
    [
        (
            ["2026", "2025"],
            r"an order or dates; try --set 'ingest\.time_format=%Y', or, .* --set ingest\.time_unit=order$",
        ),
        (["202610", "202611"], "time_format=%Y%m'"),
        (["202611020900", "202611020901"], "1976-06-03 .*all before 1995; try --set 'ingest.time_format=%Y%m%d%H%M'$"),
        (
            ["46328", "46329"],
            r"an order or dates; try --set 'ingest.time_unit=days' \(from 2026-11-02 00:00:00 to 2026-11-03",
        ),
        (["0.5", "17.25"], "an order has no fractions; say what they count with ingest.time_unit"),
        (["1.79361E+12"] * 2, "their last digits are lost"),
        (["2117179907896246272"], "2037.*most of them in the future; say what they count"),
        (["9" * 40], "from 31688740476-.*most of them in the future"),
        (["2569-11-02 09:00"], "most of them in the future; say how with ingest.time_format"),
        (["02-11-26 09:00"], "time_format=%d-%m-%y %H:%M' or .*=%m-%d-%y %H:%M' or .*=%y-%m-%d %H:%M'$"),
        (["1990-01-01 09:00"], "all before 1995"),
        (["46328.5", "46329.5", "!ann@example.com"], r"\(\(not shown: no time\), '46328.5'\)"),
    ],
)
def test_times_that_cannot_be_right_are_refused(tmp_path: Path, times: list[str], fault: str) -> None:
    log = write_log(tmp_path / "a.csv", *(f"u{number},/a,{time}" for number, time in enumerate(times)))
    with pytest.raises(InputError, match=fault):
        take_in(tmp_path / "root", log)


@pytest.mark.parametrize(
    ("times", "settings", "day"),
    [
        (["20261102", "20261103"], {}, "2026-11-02"),
        (["20261102090000", "20261103090000"], {}, "2026-11-02"),
        (["2026", "2025"], {"time_format": "%Y"}, "2025-01-01"),
        (["2026", "2025"], {"time_unit": "order"}, "undated"),
        (["1", "2", "3"], {}, "undated"),
        (["40001", "40002", "46999"], {}, "undated"),
        (["815302800"], {"time_unit": "seconds"}, "1995-11-02"),
        (["2026-11-02 09:00 +0100"], {"time_unit": "days"}, "2026-11-02"),  # text that says itself what it is
    ],
)
def test_times_that_are_taken(tmp_path: Path, times: list[str], settings: dict[str, Any], day: str) -> None:
    log = write_log(tmp_path / "a.csv", *(f"u{number},/a,{time}" for number, time in enumerate(times)))
    assert take_in(tmp_path / "root", log, **settings)["events"] == len(times)
    assert min(path.name for path in (tmp_path / "root" / "events").iterdir()) == f"day={day}"


def test_digits_of_a_date_in_parquet(tmp_path: Path) -> None:
    for name, ts in {"whole": [20261102, 20261103], "floats": [20261102.0, None], "year": [2026, 2025]}.items():
        pq.write_table(pa.table({"user_id": ["a", "b"], "url": ["/", "/"], "ts": ts}), tmp_path / f"{name}.parquet")
    for name, settings in {"whole": {}, "floats": {"max_reject_ratio": 0.5}, "year": {"time_format": "%Y"}}.items():
        take_in(tmp_path / name, tmp_path / f"{name}.parquet", **settings)
    assert [len(read_events(tmp_path / name)) for name in ("whole", "floats", "year")] == [2, 1, 2]


def test_timestamps_that_were_taken_for_another_unit(tmp_path: Path) -> None:
    """As pandas.to_datetime makes them of seconds without `unit`."""
    ts = pa.array([1_793_610_000, 1_793_610_060], pa.timestamp("ns"))
    pq.write_table(pa.table({"user_id": ["a", "b"], "url": ["/", "/"], "ts": ts}), tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match="timestamps .* from 1970-01-01 00:00:02 .*before 1995; write them again from the unit"
    ):
        take_in(tmp_path / "root", tmp_path / "a.parquet")


def test_the_log_of_a_server_may_be_of_1995(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/a,815302800,200", header="user_id,url,ts,status")
    assert take_in(tmp_path / "root", log)["events"] == 1


def test_what_is_no_unit_is_told_what_there_is() -> None:
    for unit in ("hours", "seconds since yesterday", "parsecs since 2001-01-01", "days since"):
        with pytest.raises(
            ValidationError, match=f"'{unit}' is no unit: there are seconds, .*'milliseconds since 2016"
        ):
            IngestConfig(time_unit=unit)


@pytest.mark.parametrize(
    ("times", "formats"),
    [
        (["01.11.2026 08:21", "13.11.2026 09:00"], ["%d.%m.%Y %H:%M"]),
        (["01/11/2026 08:21:05"], ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"]),
        (["01-11-26 08:21"], ["%d-%m-%y %H:%M", "%m-%d-%y %H:%M", "%y-%m-%d %H:%M"]),
        (["Nov 2, 2026, 9:00:00 AM"], ["%b %d, %Y, %I:%M:%S %p"]),
        (["2026110208", "2026110209"], ["%Y%m%d%H"]),
        (["202611020821.0"], ["%Y%m%d%H%M"]),
        (["20261102082159123"], ["%Y%m%d%H%M%S%f"]),
        (["202611", "202612"], ["%Y%m"]),
        (["202613"], []),
        (["13/11/2026"], ["%d/%m/%Y"]),
        (["11/13/2026 08:21 PM"], ["%m/%d/%Y %I:%M %p"]),
        (["01.11.2026", "x"], []),
        ([], []),
    ],
)
def test_formats_that_fit(times: list[str], formats: list[str]) -> None:
    assert guess_formats(times) == formats


def test_what_is_said_of_times_that_cannot_be_read() -> None:
    told = explain_bad_times(["ann@example.com", "\x1b[2J" + "x" * 99], ("%d.%m.%Y",))
    assert told.startswith(
        "the first times that could not be read by ingest.time_format (%d.%m.%Y): (not shown: no time), '\\x1b[2J"
    )
    assert len(told) < 300


def test_a_format_that_cannot_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError, match="%Q: Unrecognized format"):
        IngestConfig(time_format=("%d.%m.%Y", "%d.%Q"))
