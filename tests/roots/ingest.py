"""Small logs, a root that takes them in, and what is in it afterwards."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from surf2vec.sql.runner import fetch_rows
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.ingest.sql_logs import Days
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.system.files import read_json
from tests.roots.files import bytes_of

MEMORY_BYTES = 500_000_000
HEADER = "user_id,url,ts"


def write_log(path: Path, *lines: str, header: str | None = HEADER) -> Path:
    """A text log, gzipped if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in ([header] if header else []) + list(lines)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_day(folder: Path, day: int, histories: Mapping[str, Sequence[int]]) -> Path:
    """The visits of a day of January 2026, a page a minute."""
    lines = [
        f"{user},https://a.org/s{item % 4}/{item},2026-01-{day:02d}T00:{n:02d}:00Z"
        for user, items in histories.items()
        for n, item in enumerate(items)
    ]
    return write_log(folder / f"day-{day:02d}.csv", *lines)


def take_in(
    root: Path,
    *patterns: Path | str,
    partitions: int | None = 8,
    on_event: OnEvent = ignore_event,
    memory_bytes: int = MEMORY_BYTES,
    days: Days | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Ingest into the root at `root`, with one thread, and check all events there are afterwards."""
    root.mkdir(parents=True, exist_ok=True)
    config = IngestConfig(**settings)
    record = ingest(Root(root), [str(p) for p in patterns], config, partitions, memory_bytes, 1, on_event, days=days)
    check_events(root)
    return record


def events_files(root: Path) -> list[str]:
    """The events files that sources.json names."""
    return [str(root / name) for name in read_json(root / "sources.json")["files"]]


def check_events(root: Path) -> None:
    """No event breaks a rule, and there are no other files than sources.json names."""
    files = events_files(root)
    assert sorted(files) == sorted(str(path) for path in (root / "events").rglob("*") if path.is_file())
    assert not list((root / ".tmp").glob("*"))
    params = {"files": files, "partitions": read_json(root / "sources.json")["partitions"]}
    if files:
        with duckdb.connect() as con:
            [faults] = fetch_rows(con, "checks/event_faults", params)
        assert not any(faults.values()), faults


def read_events(root: Path, columns: str = "user_id, url, ts, line") -> list[tuple[Any, ...]]:
    """The events of a root, sorted by the columns asked for."""
    with duckdb.connect() as con:
        query = f"select {columns} from read_parquet($files, hive_partitioning = false) order by all"
        return con.execute(query, {"files": events_files(root)}).fetchall()


def read_rejects(root: Path, folder: str = "rejects") -> list[tuple[str, int, str]]:
    """(name of the file, line, reason) of every reject, sorted."""
    with duckdb.connect() as con:
        pattern = str(root / folder / "*.parquet")
        if not list((root / folder).glob("*.parquet")):
            return []
        rows = con.execute("select * from read_parquet($pattern) order by all", {"pattern": pattern}).fetchall()
    return [(Path(source).name, line, reason) for source, line, reason in rows]


def snapshot(root: Path) -> dict[str, bytes]:
    """Every byte of what was ingested: sources.json and events/."""
    return bytes_of(root, "sources.json", "events")
