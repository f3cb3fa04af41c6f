"""Writes an export in word2vec format, which gensim and most other tools read.

One batch of the export is in memory at a time. Every file is checked against the manifest before it is read. Activity is left
out: gensim compares whole vectors, and `train.items_from` reads items of the trained parts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.release.folder import EXPORT_MANIFEST, ReleaseFolder, open_folder
from surf2vec.tasks.release.release_reader import KEYS, compared_columns
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.events import OnEvent, ignore_event, log_progress
from surf2vec.trainer.gensim.word2vec_format import write_word2vec

_BATCH_ROWS = 8192


def export_word2vec(
    export_dir: Path, out: Path, which: str, binary: bool = True, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Write the user or item vectors of an export or a pulled release to `out`; gzipped if its name ends in .gz.

    Returns a summary; "renamed" counts percent-encoded names (trainer/gensim/word2vec_format.py). Raises ConfigError without an
    export, or if `out` is a folder or in it, DamageError, or ResourceError if writing fails: `out` is then unchanged.
    """
    if which not in KEYS:
        raise ConfigError(f"{which!r} is neither users nor items")
    if not (export_dir / EXPORT_MANIFEST).exists():
        raise ConfigError(f"{export_dir} holds no export: make one by `surf2vec run`, or get one by `surf2vec pull`")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name the file to write, such as {out / which}.bin")
    if out.resolve().is_relative_to(export_dir.resolve()):
        raise ConfigError(f"{out} is inside the export, which holds its own files only: name another place")
    release = open_folder(export_dir)
    manifest, prefix = release.manifest, f"{which[:-1]}_vectors/"
    if not any(name.startswith(prefix) for name in release.files):
        raise ConfigError(f"{export_dir} has no {which[:-1]} vectors: it was trained with train.hs = 1, a tree")
    total, vector_size = manifest[f"num_{which}"], compared_columns(manifest).stop
    num_renamed = write_word2vec(out, _report_batches(release, which, total, on_event), total, vector_size, binary)
    return {
        "release": manifest["release"], "out": str(out), "which": which, "format": "binary" if binary else "text",
        "rows": total, "vector_size": vector_size, "renamed": num_renamed, "bytes": out.stat().st_size,
    }  # fmt: skip


def _report_batches(
    release: ReleaseFolder, which: str, total: int, on_event: OnEvent
) -> Iterator[tuple[pa.Array, NDArray[np.float32]]]:
    """Yield names and vectors of the files in order, for `write_word2vec`, and report the progress."""
    done = 0
    for names, vectors in release.read_batches(which, _BATCH_ROWS):
        yield names, vectors[:, compared_columns(release.manifest)]
        done += len(names)
        log_progress(on_event, "word2vec", done, total, which)
