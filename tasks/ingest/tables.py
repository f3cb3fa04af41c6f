"""Finds logs that are parts of a Delta or Iceberg table: they still have the rows that the table deleted or replaced."""

import glob
from collections.abc import Sequence

from surf2vec.tasks.ingest.batches import Log
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import is_remote
from surf2vec.tasks.root.wording import format_counted

_SIGNS = {"Delta": "_delta_log/*.json", "Iceberg": "metadata/*.metadata.json"}
_NAMES = {"user": "user_id", "url": "url", "time": "ts"}
_MOST_REMOTE = 8  # folders that are looked at


def describe_table(logs: Sequence[Log], remote: RemoteLogs) -> str | None:
    """Return a warning if Parquet logs are parts of a table, with the SQL that reads it as it is."""
    parts = [(source.name, log) for log, source in logs if log.format == "parquet"]
    folders = {name[:at]: log for name, log in parts for at, letter in enumerate(name) if letter == "/" and at}
    away = sorted((folder for folder in folders if is_remote(folder)), key=len)[:_MOST_REMOTE]
    for folder in [folder for folder in folders if not is_remote(f"{folder}/")] + away:
        for kind, signs in _SIGNS.items():
            if found := remote.glob(f"{glob.escape(folder)}/{signs}"):
                place = folder if kind == "Delta" else max(found, key=lambda name: (len(name), name))
                columns = folders[folder].columns
                chosen = [f'"{columns[role]}" as {name}' for role, name in _NAMES.items() if columns[role]]
                number = sum(name.startswith(f"{folder}/") for name, _ in parts)
                return (
                    f"the {kind} table {folder} is read as plain Parquet ({format_counted(number, 'file')}): what it deleted "
                    f"or replaced counts, too; to read it right, with DuckDB's extension {kind.lower()}, give --logs table.sql, "
                    f"a file with: select {', '.join(chosen)} from {kind.lower()}_scan('{place}')"
                )
    return None
