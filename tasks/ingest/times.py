"""Recognises the times of a log: calendar times, a count of seconds or fractions since 1970, or only an order.

The median gives the unit of numbers: seconds up to 1e11 (the year 5138), milliseconds up to 1e14, microseconds up to 1e17,
nanoseconds above. Below 1e8 (March 1973) they are not times but an order.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from surf2vec.sql.runner import fetch_rows
from surf2vec.tasks.ingest.formats import LogFile

EARLIEST = datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC).replace(tzinfo=None)  # 1e8 seconds
PROFILE_LINES = 10_000
_DATES = ("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y.%m.%d", "%d %b %Y", "%b %d, %Y")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", ", %H:%M", ", %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_UNITS = ((1e11, "seconds"), (1e14, "milliseconds"), (1e17, "microseconds"), (float("inf"), "nanoseconds"))


@dataclass(frozen=True)
class TimeScale:
    """How the times of a source are read. kind: for the SQL steps; description: for people."""

    kind: str
    description: str

    @property
    def is_dated(self) -> bool:
        return self.kind not in ("order", "line")


def explain_bad_times(times: Sequence[str], formats: Sequence[str]) -> str:
    """Return a message with the first unreadable times, and the setting of a usual format that fits them, if any."""
    shown = ", ".join("(not shown: no time)" if "@" in text or "://" in text else repr(text[:40]) for text in times)
    setting = " or ".join(f"--set 'ingest.time_format={found}'" for found in guess_formats(times))
    way_out = setting or "--set ingest.time_format=..., as of strptime, for instance %d.%m.%Y %H:%M"
    tried = f" by ingest.time_format ({', '.join(formats)})" if formats else ""
    return f"the first times that could not be read{tried}: {shown}; say how they are written with {way_out}"


def guess_formats(times: Sequence[str]) -> list[str]:
    """Return the usual formats that fit all of these times: two if day and month are ambiguous."""
    found = []
    for format in (date + clock for date in _DATES for clock in _CLOCKS):
        with suppress(ValueError):
            for text in times:
                datetime.strptime(text.strip(), format)
            found.append(format)
    return found if times else []


def recognise_times(
    con: duckdb.DuckDBPyConnection, log: LogFile, num_lines: int, timezone: str, formats: Sequence[str]
) -> TimeScale:
    """Return how to read the times of the loaded `stg_lines`; text by `formats` if given."""
    if log.columns["time"] is None:
        return TimeScale("line", "order of the lines")
    if log.format == "access":
        return TimeScale("calendar", "access-log times")
    column_type = str(con.table("stg_lines").select("time").types[0])
    if column_type.startswith(("TIMESTAMP", "DATE")):
        has_zone = "WITH TIME ZONE" in column_type
        return TimeScale("calendar", "timestamps" if has_zone else f"timestamps without zone, taken as {timezone}")
    if formats and column_type == "VARCHAR":
        return TimeScale("format", f"as {' or '.join(formats)}")
    [profile] = fetch_rows(con, "intermediate/int_time_profile", {"stride": max(1, num_lines // PROFILE_LINES)})
    if 2 * profile["num_numbers"] > profile["num_times"]:
        return scale_of(profile["median"])
    return TimeScale(
        "calendar", "text with zone" if profile["num_zoned"] else f"text without zone, taken as {timezone}"
    )


def scale_of(median: float) -> TimeScale:
    """Return the unit of numbers of this size."""
    if median < 1e8:
        return TimeScale("order", "integer order")
    unit = next(name for limit, name in _UNITS if median < limit)
    return TimeScale(unit, f"epoch {unit}")
