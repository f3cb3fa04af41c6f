"""The file of a release that trails are summed up from: the input vector of each item.

    trail_inputs.parquet   url, vector float32: in the order of the item vectors; missing without a trail

The manifest's entry `trail` has the file and the numbers of the sum: `lags`, `bias` and `weight` (tasks/export/trail_sums.py).
"""

from pathlib import Path

import pyarrow.parquet as pq

from surf2vec.tasks.export.export import path_of, read_export
from surf2vec.tasks.export.served_export import decode_vectors
from surf2vec.tasks.export.trail_sums import TrailSums, trail_of_release
from surf2vec.trainer.errors import InputError


def open_trail_sums(export_dir: Path) -> TrailSums:
    """Return what sums up trails in the vectors of an export.

    Raises InputError if there is no export or it has no trail, DamageError if its file is damaged.
    """
    manifest = read_export(export_dir)
    try:
        name = trail_of_release(manifest)["file"]
    except ValueError as error:
        raise InputError(str(error)) from None
    table = pq.read_table(path_of(export_dir, manifest, name))
    return TrailSums.of_release(manifest, table["url"].to_pylist(), decode_vectors(table))
