"""What the times of a log are: calendar times, a count of seconds or parts of them since 1970, or a mere order.

Numbers are told by the size of their median: seconds up to 1e11 (the year 5138), milliseconds up to 1e14, microseconds up
to 1e17, nanoseconds above. Below 1e8 (March 1973) they are no times but an order.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from sql.runner import fetch_rows
from tasks.logfiles import LogFile

EARLIEST = datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC).replace(tzinfo=None)  # 1e8 seconds
PROFILE_LINES = 10_000
_UNITS = ((1e11, "seconds"), (1e14, "milliseconds"), (1e17, "microseconds"), (float("inf"), "nanoseconds"))


@dataclass(frozen=True)
class TimeScale:
    """How the times of a source are read: the kind that SQL knows, and what a person is told."""

    kind: str
    description: str

    @property
    def is_dated(self) -> bool:
        return self.kind not in ("order", "line")


def recognise_times(con: duckdb.DuckDBPyConnection, log: LogFile, num_lines: int, timezone: str) -> TimeScale:
    """How the times of the loaded `stg_lines` are to be read."""
    if not log.has_times:
        return TimeScale("line", "order of the lines")
    if log.format == "access":
        return TimeScale("calendar", "access-log times")
    column_type = str(con.table("stg_lines").select("time").types[0])
    if column_type.startswith(("TIMESTAMP", "DATE")):
        has_zone = "WITH TIME ZONE" in column_type
        return TimeScale("calendar", "timestamps" if has_zone else f"timestamps without zone, taken as {timezone}")
    profile = fetch_rows(con, "intermediate/int_time_profile", {"stride": max(1, num_lines // PROFILE_LINES)})[0]
    if 2 * profile["num_numbers"] > profile["num_times"]:
        return scale_of(profile["median"])
    if profile["num_zoned"]:
        return TimeScale("calendar", "text with zone")
    return TimeScale("calendar", f"text without zone, taken as {timezone}")


def scale_of(median: float) -> TimeScale:
    """What numbers of this size count."""
    if median < 1e8:
        return TimeScale("order", "integer order")
    unit = next(name for limit, name in _UNITS if median < limit)
    return TimeScale(unit, f"epoch {unit}")
