"""Finds logs that are parts of a Delta or Iceberg table: they still have the rows that the table deleted or replaced."""

import glob
from collections.abc import Sequence

from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import is_remote
from surf2vec.tasks.ingest.staging import Log

_SIGNS = {"Delta": "_delta_log/*.json", "Iceberg": "metadata/*.metadata.json"}
_NAMES = {"user": "user_id", "url": "url", "time": "ts"}
_MOST_REMOTE = 8  # folders that are looked at


def describe_tables(logs: Sequence[Log], remote: RemoteLogs) -> list[str]:
    """Return a warning for each table that Parquet logs are parts of, with the SQL that reads it as it is."""
    parts = [(source.name, log) for log, source in logs if log.format == "parquet"]
    folders = {name[:at]: log for name, log in parts for at, letter in enumerate(name) if letter == "/" and at}
    nearby = [folder for folder in sorted(folders, key=len) if not is_remote(folder)]
    away = [folder for folder in sorted(folders, key=len) if is_remote(folder) and not folder.endswith(":/")]
    warnings = []
    for folder in nearby + away[:_MOST_REMOTE]:
        for kind, signs in _SIGNS.items():
            if found := remote.glob(f"{glob.escape(folder)}/{signs}"):
                place = folder if kind == "Delta" else max(found, key=lambda name: (len(name), name))
                columns = [(folders[folder].columns[role], role) for role in ("user", "url", "time")]
                chosen = [f'"{column}" as {_NAMES[role]}' for column, role in columns if column]
                number = sum(name.startswith(f"{folder}/") for name, _ in parts)
                warnings.append(
                    f"{number:,} of the logs are parts of the {kind} table {folder}: what it deleted or replaced counts, too; "
                    f"to read it as it is, give --logs table.sql, a file with: select {', '.join(chosen)} "
                    f"from {kind.lower()}_scan('{place}')"
                )
    return warnings
