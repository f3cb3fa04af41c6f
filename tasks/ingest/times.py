"""Recognises the times of a log: calendar times, a count of units since an instant, or only an order.

The median gives the unit of numbers: seconds up to 1e11 (the year 5138), milliseconds up to 1e14, microseconds up to 1e17,
nanoseconds above. Below 1e8 (March 1973) they are not times but an order; 8 or 14 digits that are a day or a second are dates.
What cannot be right is refused, with the units and formats that make usual times of it.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import numpy as np

from surf2vec.sql.runner import fetch_rows
from surf2vec.tasks.config import TIME_UNITS, IngestConfig, parse_time_unit
from surf2vec.tasks.ingest.batches import Batch
from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.trainer.errors import InputError

EARLIEST = datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC).replace(tzinfo=None)  # 1e8 seconds
OLDEST = datetime(1995, 1, 1)  # there are hardly older logs of the web
PROFILE_LINES, LOG_LINES = 2_000, 20  # whose times are looked at: of all logs that are loaded, and of each at least
_NO_TIMES: dict[str, Any] = {"num_times": 0, "num_numbers": 0, "num_zoned": 0, "calendar_times": None, "examples": []}
_DATES = "%d.%m.%Y;%d.%m.%y;%d/%m/%Y;%m/%d/%Y;%d/%m/%y;%m/%d/%y;%d-%m-%Y;%m-%d-%Y;%d-%m-%y;%m-%d-%y;%y-%m-%d;%Y.%m.%d;"
_DATES += "%d %b %Y;%d-%b-%Y;%b %d, %Y"
_CLOCKS = "; %H:%M; %H:%M:%S; %H:%M:%S.%f;, %H:%M;, %H:%M:%S; %I:%M %p; %I:%M:%S %p;, %I:%M:%S %p"
_DIGITS = {"%Y": 4, "%Y%m": 6, "%y%m%d": 6, "%Y%m%d": 8, "%Y%m%d%H": 10, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S%f": 17}
_LIMITS = {"order": 1e8, "seconds": 1e11, "milliseconds": 1e14, "microseconds": 1e17, "nanoseconds": float("inf")}
_RARE_UNITS = ("nanoseconds since 2001-01-01", "seconds since 1900-01-01", "days since 1970-01-01")
_WORDS = {"order": "integer order", "days": "Excel's days", "ticks": ".NET's ticks", "filetime": "FILETIME"}
_WORDS |= {"webkit": "WebKit's microseconds", "cocoa": "Cocoa's seconds"}
_YEAR = 365.25 * 86_400 * 1e6  # microseconds


@dataclass(frozen=True)
class TimeScale:
    """How the times of a source are read. kind: for the SQL steps; description: for people; unit: of numbers, or order."""

    kind: str
    description: str
    unit: str = "seconds"
    formats: tuple[str, ...] = ("%Y",)

    @property
    def is_dated(self) -> bool:
        return self.kind not in ("order", "line")

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of int_timed_lines."""
        unit, origin = parse_time_unit(self.unit if self.is_dated else "seconds")
        number = {"unit": unit.numerator, "divisor": unit.denominator, "origin": origin * unit.denominator}
        words = {"time_kind": self.kind, "time_formats": list(self.formats), "is_days": self.unit == "days"}
        return number | words | {"is_dated": self.is_dated, "earliest": EARLIEST}


def explain_bad_times(times: Sequence[str], formats: Sequence[str]) -> str:
    """Return a message with the first unreadable times, and the setting of a usual format that fits them, if any."""
    setting = " or ".join(f"--set 'ingest.time_format={found}'" for found in guess_formats(times))
    way_out = setting or "--set ingest.time_format=..., as of strptime, for instance %d.%m.%Y %H:%M"
    tried = f" by ingest.time_format ({', '.join(formats)})" if formats else ""
    return f"the first times that could not be read{tried}: {_quote(times)}; say how they are written with {way_out}"


def guess_formats(times: Sequence[str], latest: datetime = datetime.max) -> list[str]:
    """Return the usual formats that make times from 1995 to `latest` of all these texts: two if day and month are ambiguous."""
    texts = [text.strip().removesuffix(".0") for text in times]
    lengths = {text.isdecimal() and len(text) for text in texts}
    usual = [date + clock for date in _DATES.split(";") for clock in _CLOCKS.split(";")]
    found = []
    for format in [format for format, length in _DIGITS.items() if lengths == {length}] or usual:
        with suppress(ValueError):
            if all(OLDEST <= datetime.strptime(text, format) <= latest for text in texts):
                found.append(format)
    return found if times else []


def guess_units(low: float, high: float, latest: datetime, but: str = "") -> list[str]:
    """Return the units that make usual times of numbers from `low` to `high`: from 1995 to `latest`, some of the last 15 years,
    and years after the origin; rare units if there are no others.
    """

    def is_usual(unit: str) -> bool:
        origin, first, last = _read(unit, 0, low, high)
        return max(_us(OLDEST), origin + 5 * _YEAR) <= first and _us(latest) - 15 * _YEAR <= last <= _us(latest)

    found = [[unit for unit in units if unit != but and is_usual(unit)] for units in (TIME_UNITS, _RARE_UNITS)]
    return found[0] or found[1]


def recognise_times(
    con: duckdb.DuckDBPyConnection, batch: Batch, config: IngestConfig, now: datetime
) -> list[TimeScale]:
    """Return how to read the times of each log of a batch, loaded as `stg_lines`; text by the formats of the settings, if given.

    Raises InputError when most of the times of a log cannot be right.
    """
    log, names = batch.log, [source.name for source in batch.sources]
    if log.columns["time"] is None:
        return [TimeScale("line", "order of the lines")] * len(names)
    unit, formats = config.time_unit or log.layout.time_unit, config.time_format or log.layout.time_format
    lines = con.table("stg_lines")
    column_type = str(lines.select("time").types[0])
    is_typed = column_type.startswith(("TIMESTAMP", "DATE"))
    is_digits = column_type != "VARCHAR" and all(re.fullmatch(r"(%[A-Za-z])+", format) for format in formats)
    if formats and not is_typed and (is_digits or column_type == "VARCHAR"):
        scale = TimeScale("digits" if is_digits else "format", f"as {' or '.join(formats)}", formats=formats)
        return [scale] * len(names)
    latest = now + timedelta(days=1)
    stride = max(1, len(lines) // max(PROFILE_LINES, LOG_LINES * len(names)))
    params = {"stride": stride, "oldest": OLDEST, "latest": latest, "place_bits": batch.place_bits}
    profiles = {profile["place"]: profile for profile in fetch_rows(con, "intermediate/int_time_profile", params)}
    scales = []
    for place, name in enumerate(names):
        profile = profiles.get(place, _NO_TIMES)
        if 2 * profile["num_numbers"] <= profile["num_times"]:
            has_zone = "WITH TIME ZONE" in column_type or (profile["num_zoned"] and not is_typed)
            zone = "with zone" if has_zone else f"without zone, taken as {config.timezone}"
            scale = TimeScale(*(("timestamp", f"timestamps {zone}") if is_typed else ("calendar", f"text {zone}")))
        elif not unit and profile["num_written"] > 0.95 * profile["num_numbers"]:
            scale = TimeScale("digits", "dates as digits", formats=("%Y%m%d", "%Y%m%d%H%M%S"))
        else:
            scale = scale_of(profile["numbers"][1], unit)
        if fault := _find_fault(scale, profile, log, unit, latest):
            examples = _quote(sorted(profile["examples"])[:2])
            raise InputError(f"the times of {name} ({examples}) cannot be right: {fault}")
        scales.append(scale)
    return scales


def scale_of(median: float, unit: str | None = None) -> TimeScale:
    """Return the scale of numbers of a unit, by default the one of numbers of this size."""
    unit = unit or next(name for name, limit in _LIMITS.items() if median < limit)
    description = _WORDS.get(unit, unit if " " in unit else f"epoch {unit}")
    return TimeScale("order" if unit == "order" else "number", description, unit)


def _find_fault(
    scale: TimeScale, profile: dict[str, Any], log: LogFile, unit: str | None, latest: datetime
) -> str | None:
    """Return why the times of a source cannot be right, with the settings that make usual times of them; None if they may be.

    unit: of the settings; a unit that a person gave is doubted only if it makes no times at all.
    """
    is_number = scale.kind in ("number", "order")
    values: list[Any] = profile["numbers" if is_number else "calendar_times"]
    if not values or scale.unit == unit == "order":
        return None
    low, median, high = values
    units = guess_units(low, high, latest, scale.unit) if is_number else []
    formats = guess_formats(profile["examples"], latest)
    if scale.kind == "order" and "days" not in units and 2 * profile["num_distinct"] > profile["num_numbers"]:
        units = []  # positions rarely repeat, days do
    settings = [f"--set 'ingest.time_format={found}'" for found in formats]
    settings += [f"--set 'ingest.time_unit={found}' ({_show(*_read(found, low, high))})" for found in units]
    hints = {"timestamp": "write them again from the unit that they had", "calendar": "say how with ingest.time_format"}
    hint = hints.get(scale.kind, "say what they count with ingest.time_unit (docs/logs.md)")
    way_out = f"try {' or '.join(settings)}" if settings else hint
    confirm = f", or, if it is right, --set ingest.time_unit={scale.unit}"
    if scale.kind == "order":
        if profile["num_fractions"]:
            return f"an order has no fractions; {way_out}"
        return f"they may be an order or dates; {way_out}{confirm}" if settings else None
    first, middle, last = _read(scale.unit, low, median, high) if is_number else (low, median, high)
    span = f"as {scale.description} they are {_show(first, last)}"
    if middle > _us(latest):
        return f"{span}, most of them in the future; {way_out}"
    if last < _us(EARLIEST if is_number and unit else OLDEST):
        return f"{span}, all before 1995; {way_out}"
    is_server_log = log.columns.get("status") or log.columns.get("method")
    if units and not unit and not is_server_log and last < _us(latest) - 31 * _YEAR:  # as many from 1970 to 2001
        return f"{span}, which is long ago; {way_out}{confirm}"
    if is_number and not unit and 2 * profile["num_rounded"] > profile["num_numbers"]:
        return "their last digits are lost (Excel shortens long numbers); export them again, as whole numbers"
    return None


def _quote(times: Sequence[str]) -> str:
    return ", ".join("(not shown: no time)" if "@" in text or "://" in text else repr(text[:40]) for text in times)


def _read(unit: str, *numbers: float) -> list[float]:
    """Return the microseconds since 1970 that numbers of a unit are."""
    length, origin = parse_time_unit(unit)
    return [number * float(length) + origin for number in numbers]


def _us(time: datetime) -> float:
    return (time - datetime(1970, 1, 1)) / timedelta(microseconds=1)


def _show(*span: float) -> str:
    """Return a span of times as text for people, also of years that Python has no dates for."""
    seconds = [round(min(max(us / 1e6, -1e18), 1e18)) for us in span]
    return "from " + " to ".join(str(np.datetime64(second, "s")).replace("T", " ") for second in seconds)
