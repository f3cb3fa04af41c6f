"""Pushes to Parquet files in a folder, for warehouses.

    PATH/current                          a link to the side that serves; replacing it is the switch
         a/surf2vec_push.json             what the side holds
           user_vectors/*.parquet         user_id, vector, digest, release, version, window_end
           item_vectors/*.parquet         url, and the same

A side is written as a whole: files of Parquet cannot be changed. The release is in the names of the files, so that a reader who
listed `current` before the switch and opens it after misses a file rather than mixes releases.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import KEYS, decode_vectors
from surf2vec.tasks.stores.places import Place, Side, Store, empty_digests
from surf2vec.trainer.system.files import (
    TEMPORARY_SUFFIX,
    read_json,
    replace_file,
    sync_folders,
    sync_path,
    write_manifest_json,
)

FILE_ROWS = 1 << 18
SIDES = ("a", "b")
ERRORS = (OSError, RuntimeError)


class ParquetStore(Store):
    """A folder of Parquet files."""

    keeps_tables = False  # each row names the release, and so does each file

    def __init__(self, place: Place) -> None:
        self.place, self.folder = place, Path(place.path)
        self.current, self.log = self.folder / f"{place.prefix}current", f"{place.log_table}.json"

    def read_log(self) -> list[dict[str, Any]]:
        serves = os.readlink(self.current) if self.current.is_symlink() else ""
        logs = [self._side(name) / self.log for name in SIDES]
        return [read_json(log) | {"serves": log.parent.name == serves} for log in logs if log.exists()]

    def list_names(self) -> set[str]:
        folders = {"": self.current} | {name: self._side(name) for name in SIDES}
        taken = [
            name
            for name, path in folders.items()
            if path.exists() and not (path.is_dir() and set(path.iterdir()) <= self._find_unfinished(path))
        ]
        return {self.place.table(kind, name) for name in taken for kind in KEYS} | {self.place.log_table}

    def record(self, side: Side) -> None:
        folder = self._side(side.name)
        folder.mkdir(exist_ok=True)
        for path in self._find_unfinished(folder):
            path.unlink()
        write_manifest_json(folder / self.log, asdict(side))

    def make_table(self, kind: str, side: Side, since: Side | None) -> None:
        folder = self._side(side.name) / f"{kind[:-1]}_vectors"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        empty = empty_digests(kind)
        return pl.concat([empty, *(pl.read_parquet(path, columns=empty.columns) for path in self._files(name, kind))])

    def change(self, name: str, kind: str, removed: list[str], rows: Iterable[pa.Table], share: float) -> None:
        side = next(side for side in self.read_sides() if side.name == name)
        gone = pa.array(removed, pa.string())
        for path in self._files(name, kind) if removed else ():
            table = pq.read_table(path)
            kept = table.filter(pc.invert(pc.is_in(table[KEYS[kind]], gone)))
            if len(kept) < len(table):
                with replace_file(path) as temporary:
                    pq.write_table(kept, temporary)
        num_rows, writer, folder = FILE_ROWS, None, self._side(name) / f"{kind[:-1]}_vectors"
        with ExitStack() as files:
            for part in rows:
                for label in ("release", "version", "window_end"):
                    part = part.append_column(label, pa.repeat(getattr(side, label), len(part)))
                if num_rows >= FILE_ROWS:
                    files.close()
                    path = folder / f"{side.release}-{len(self._files(name, kind)):05d}.parquet"
                    temporary = files.enter_context(replace_file(path))
                    writer, num_rows = files.enter_context(pq.ParquetWriter(temporary, part.schema)), 0
                if writer is not None:
                    writer.write_table(part)
                num_rows += len(part)

    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}
        for path in self._files(name, kind):
            chosen = ds.field(KEYS[kind]).isin(keys)
            rows = ds.dataset(path).to_table(columns=[KEYS[kind], "vector"], filter=chosen)
            found |= dict(zip(rows[KEYS[kind]].to_pylist(), decode_vectors(rows), strict=True))
        return found

    def swap(self, side: Side) -> None:
        sync_folders(self._side(side.name))
        self.record(side)
        link = self.folder / f".{self.current.name}.tmp"
        link.unlink(missing_ok=True)
        link.symlink_to(self._side(side.name).name)
        os.replace(link, self.current)
        sync_path(self.folder)

    def _find_unfinished(self, folder: Path) -> set[Path]:
        """Return the records of a side that were cut off while they were written."""
        return set(folder.glob(f".{self.log}.*{TEMPORARY_SUFFIX}"))

    def _side(self, name: str) -> Path:
        return self.folder / f"{self.place.prefix}{name}"

    def _files(self, name: str, kind: str) -> list[Path]:
        return sorted((self._side(name) / f"{kind[:-1]}_vectors").glob("*.parquet"))
