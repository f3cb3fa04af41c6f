"""Sample logs: realistic browsing of any number of users, the same bytes at every call, in a fixed memory.

`sample_world` says which pages there are, `sample_visits` who visits them and when, `sample_lines` how that is
written down; this module writes one file a day, or several parts of a day. The memory is that of one part of one day
(about a million events) and of the pages, whatever the number of users.

`interests_of`, `interests_of_user_ids` and `topic_of_url` tell afterwards what was planted.
"""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.sample.lines import PARQUET_SCHEMA, Pools, make_lines, make_pools, make_table
from tasks.sample.visits import (
    FIRST_DAY,
    MEAN_USER_EVENTS,
    Visits,
    draw_visits,
    interests_of,
    interests_of_user_ids,
    make_part,
)
from tasks.sample.world import TOPICS, make_world, topic_of_url
from trainer.errors import ConfigError, ResourceError
from trainer.events import OnEvent, ignore_event
from trainer.system.files import read_json, replace_file, write_json

__all__ = ["TOPICS", "Format", "interests_of", "interests_of_user_ids", "topic_of_url", "write_sample_logs"]

Format = Literal["csv", "jsonl", "parquet", "combined"]
SUFFIXES = {"csv": "csv", "jsonl": "jsonl", "parquet": "parquet", "combined": "log"}
EVENT_BYTES = {"csv": 105, "jsonl": 135, "parquet": 20, "combined": 245}  # measured; only to look for free disk
PART_EVENTS = 1_000_000  # of one day; what the memory is measured out for
MOST_PART_USERS = 2_000_000
BATCH_EVENTS = 131_072  # made into text at once; a row group in Parquet
LONGEST_DAYS = 3_650
NOTE = ".sample-logs.json"  # arguments, names and counts of what was written; hidden, so that `*` does not find it
FORMAT_VERSION = 1  # raised when the same arguments give other bytes


def write_sample_logs(
    out: Path, users: int, days: int, items: int, seed: int, format: Format, on_event: OnEvent = ignore_event
) -> dict[str, int]:
    """Write the logs of so many users and days (from 2026-01-01 on), about 25 events a user, into the folder `out`.

    Logs that are there with the same arguments stay; those of other arguments, written by this function, go.
    Returns `{"files", "events", "bytes", "users", "broken_lines", "bots"}`; events are good lines, crawlers' with them.
    Raises ConfigError for arguments out of bounds, ResourceError when `out` cannot be written or the disk is short.
    """
    _check_arguments(users, days, items, seed, format)
    arguments = {"users": users, "days": days, "items": items, "seed": seed, "format": format}
    with _explain_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        note = read_json(out / NOTE) if (out / NOTE).exists() else {"files": {}}
        if _is_complete(out, note, arguments):
            on_event("log", {"message": f"sample logs are there already: {note['totals']['files']} files in {out}"})
            return note["totals"]
        for name in note["files"]:
            (out / Path(name).name).unlink(missing_ok=True)
        _check_disk(out, users * MEAN_USER_EVENTS * EVENT_BYTES[format])
        part_users = min(MOST_PART_USERS, PART_EVENTS * days // MEAN_USER_EVENTS)
        num_parts = math.ceil(users / part_users)
        names = [[_file_name(day, part, num_parts, format) for day in range(days)] for part in range(num_parts)]
        all_names = [name for part_names in names for name in part_names]
        note = {"format_version": FORMAT_VERSION, "arguments": arguments, "files": dict.fromkeys(all_names)}
        write_json(out / NOTE, note)  # before the first file: what a killed call leaves is known to the next
        totals = _write_files(out, names, note, on_event)
        write_json(out / NOTE, note | {"totals": totals})
    message = "{files:,} files, {events:,} events of {users:,} users, {broken_lines:,} broken lines, {bytes:,} bytes"
    on_event("log", {"message": f"sample logs in {out}: {message.format(**totals)}"})
    return totals


def _write_files(out: Path, names: list[list[str]], note: dict[str, Any], on_event: OnEvent) -> dict[str, int]:
    """Write the files `names[part][day]`, enter their bytes into the note, and return the totals."""
    users, days, items, seed, format = (note["arguments"][key] for key in ("users", "days", "items", "seed", "format"))
    pools = make_pools(make_world(items), seed)
    totals = {"files": 0, "events": 0, "bytes": 0, "users": users, "broken_lines": 0}
    bots: set[int] = set()
    for part_number, part_names in enumerate(names):
        part = make_part(part_number, len(names), users, days, seed)
        for day, name in enumerate(part_names):
            visits = draw_visits(part, pools.world, day)
            with replace_file(out / name) as path:
                _write_file(path, visits, FIRST_DAY + timedelta(days=day), pools, format)
            num_broken = int(np.count_nonzero(visits.broken))
            note["files"][name] = (out / name).stat().st_size
            totals["files"] += 1
            totals["events"] += len(visits) - num_broken
            totals["broken_lines"] += num_broken
            totals["bytes"] += note["files"][name]
            progress = {"step": "sample-logs", "done": totals["files"], "total": len(note["files"]), "unit": "files"}
            on_event("progress", progress)
            bots.update(visits.key[visits.is_bot].tolist())
    return totals | {"bots": len(bots)}


def _write_file(path: Path, visits: Visits, day: date, pools: Pools, format: Format) -> None:
    """Write the visits of one part and day, a batch at a time."""
    batches = [visits.take(slice(start, start + BATCH_EVENTS)) for start in range(0, len(visits), BATCH_EVENTS)]
    if format == "parquet":
        # Ids and most URLs of a batch differ: a dictionary costs time and saves nothing.
        with pq.ParquetWriter(path, PARQUET_SCHEMA, compression="zstd", use_dictionary=False) as writer:
            for batch in batches:
                writer.write_table(make_table(batch, day, pools))
        return
    with open(path, "wb") as file:
        if format == "csv":
            file.write(b"user_id,url,ts\n")
        for batch in batches:
            file.write(_text_of(make_lines(batch, day, pools, format)))


def _text_of(lines: pa.Array) -> memoryview:
    """The bytes of all strings of an array, one after the other, without a copy."""
    _, offsets, text = lines.buffers()
    bounds = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(text)[bounds[0] : bounds[-1]]


def _file_name(day: int, part: int, num_parts: int, format: Format) -> str:
    """`2026-01-05.csv`, or `2026-01-05.part-003.csv` when a day has several parts."""
    suffix = SUFFIXES[format] if num_parts == 1 else f"part-{part:03}.{SUFFIXES[format]}"
    return f"{FIRST_DAY + timedelta(days=day)}.{suffix}"


def _is_complete(out: Path, note: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Whether the logs of these arguments are there, each file with the bytes that the note says."""
    if note.get("format_version") != FORMAT_VERSION or note["arguments"] != arguments or "totals" not in note:
        return False
    paths = {out / name: num_bytes for name, num_bytes in note["files"].items()}
    return all(path.exists() and path.stat().st_size == num_bytes for path, num_bytes in paths.items())


def _check_arguments(users: int, days: int, items: int, seed: int, format: str) -> None:
    """Raise ConfigError for what cannot be made."""
    if format not in SUFFIXES:
        raise ConfigError(f"--format {format} is none of {', '.join(SUFFIXES)}")
    bounds = {
        "users": (users, 1, 10**9),
        "days": (days, 1, LONGEST_DAYS),
        "items": (items, len(TOPICS), 10**8),
        "seed": (seed, 0, 2**63 - 1),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise ConfigError(f"--{name} is {value:,}, but it has to be from {least:,} to {most:,}")


def _check_disk(out: Path, need_bytes: int) -> None:
    """Raise ResourceError when the logs will not fit on the disk."""
    free_bytes = shutil.disk_usage(out).free
    if need_bytes > free_bytes:
        raise ResourceError(
            f"the logs need about {need_bytes / 1e9:,.1f} GB but {out} has {free_bytes / 1e9:,.1f} GB free: "
            "take fewer --users, --format parquet, or another folder with --out"
        )


@contextmanager
def _explain_errors(out: Path) -> Iterator[None]:
    """Turn what the system refuses into a ResourceError that says where and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write sample logs to {out}: {reason}; give another folder with --out") from None
