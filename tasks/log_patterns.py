"""What a person may write for the lines and times of a log: a regular expression with named groups, formats of strptime."""

from collections.abc import Sequence

import duckdb
import polars as pl

_GROUPS = ("user", "url", "time", "host", "method", "status", "agent")


def pattern_groups(pattern: str) -> list[str]:
    """The names of a pattern's groups. Raises ValueError, with the reason, when it is no regular expression."""
    try:
        return pl.Series([""]).str.extract_groups(pattern).struct.unnest().columns
    except pl.exceptions.ComputeError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(f"this is no regular expression that can be used: {reason}") from None


def check_pattern(pattern: str, has_time: bool) -> None:
    """Raise ValueError for a pattern that cannot be used: not one, without a group that is needed, or with an unknown one."""
    groups = [name for name in pattern_groups(pattern) if not name.isdigit()]
    unknown = [name for name in groups if name not in _GROUPS]
    needed = ("user", "url", "time") if has_time else ("user", "url")
    missing = [name for name in needed if name not in groups]
    if unknown or missing:
        problem = f"group {unknown[0]!r} is unknown" if unknown else f"group (?P<{missing[0]}>...) is missing"
        without_time = "; without times, --set 'ingest.columns.time=[]'" if missing == ["time"] else ""
        raise ValueError(f"{problem}: there are user, url, time, host, method, status and agent{without_time}")


def check_formats(formats: Sequence[str]) -> None:
    """Raise ValueError, with the reason, for formats that DuckDB's strptime cannot read."""
    try:
        duckdb.execute("select try_strptime('', $formats::varchar[])", {"formats": list(formats)})
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0].rpartition("Error: ")[2]
        raise ValueError(f"{reason}; write for instance %d.%m.%Y %H:%M") from None
