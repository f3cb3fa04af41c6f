"""The file of a release that paths are summed up from: the input vector of each item.

    path_inputs.parquet   url, vector float32: in the order of the item vectors; missing without a path

The manifest's entry `path` has the file and the numbers of the sum: `lags`, `bias` and `weight` (tasks/export/path_sums.py).
"""

from pathlib import Path

import pyarrow.parquet as pq

from tasks.export.export import path_of, read_export
from tasks.export.path_sums import PathSums, path_of_release
from tasks.export.served_export import decode_vectors
from trainer.errors import InputError


def open_path_sums(export_dir: Path) -> PathSums:
    """Return what sums up paths in the vectors of an export.

    Raises InputError if there is no export or it has no path, DamageError if its file is damaged.
    """
    manifest = read_export(export_dir)
    try:
        name = path_of_release(manifest)["file"]
    except ValueError as error:
        raise InputError(str(error)) from None
    table = pq.read_table(path_of(export_dir, manifest, name))
    return PathSums.of_release(manifest, table["url"].to_pylist(), decode_vectors(table))
