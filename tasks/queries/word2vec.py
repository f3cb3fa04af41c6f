"""Writes an export in word2vec format, which gensim and most other tools read.

One batch of the export is in memory at a time. Every file is checked against the manifest before it is read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.export.export import EXPORT_MANIFEST, path_of, read_export
from surf2vec.tasks.export.form import list_files
from surf2vec.tasks.export.served_export import decode_vectors
from surf2vec.tasks.export.vector_files import VECTOR_COLUMNS
from surf2vec.trainer.errors import ConfigError, DamageError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.gensim.word2vec_format import write_word2vec

_KEYS = {"users": "user_id", "items": "url"}
_BATCH_ROWS = 8192
_WAY_OUT = "bring the release back with `surf2vec pull models:/NAME/VERSION --out` and that folder"


def export_word2vec(
    export_dir: Path, out: Path, which: str, binary: bool = True, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Write the user or item vectors of an export or a pulled release to `out`; gzipped if its name ends in .gz.

    Returns a summary; "renamed" counts names that had to be percent-encoded (trainer/gensim/word2vec_format.py).
    Raises ConfigError if there is no export or `out` is a folder or inside the export, DamageError for an altered export,
    ResourceError if writing fails: `out` is then unchanged.
    """
    if which not in _KEYS:
        raise ConfigError(f"{which!r} is neither users nor items")
    if not (export_dir / EXPORT_MANIFEST).exists():
        raise ConfigError(
            f"{export_dir} holds no export: make one with `surf2vec run`, or bring one there with `surf2vec pull`"
        )
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name the file to write, such as {out / which}.bin")
    if out.resolve().is_relative_to(export_dir.resolve()):
        raise ConfigError(f"{out} is inside the export, which holds its own files only: name another place")
    manifest = read_export(export_dir)
    try:
        prefix = f"{which[:-1]}_vectors/"
        files = {name: about for name, about in list_files(manifest).items() if name.startswith(prefix)}
        total = sum(int(about["rows"]) for about in files.values())
        release, vector_size = manifest["release"], int(manifest["vector_size"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamageError(f"{export_dir / EXPORT_MANIFEST} is not an export's: {_WAY_OUT}") from None
    if not files:
        raise ConfigError(f"{export_dir} has no {which[:-1]} vectors: it was trained with train.hs = 1, a tree")
    batches = _read_batches(export_dir, manifest, which, total, on_event)
    num_renamed = write_word2vec(out, batches, total, vector_size, binary)
    return {
        "release": release, "out": str(out), "which": which, "format": "binary" if binary else "text", "rows": total,
        "vector_size": vector_size, "renamed": num_renamed, "bytes": out.stat().st_size,
    }  # fmt: skip


def _read_batches(
    export_dir: Path, manifest: dict[str, Any], which: str, total: int, on_event: OnEvent
) -> Iterator[tuple[pa.Array, Any]]:
    """Yield names and vectors of the files in order, for `write_word2vec`. Raises DamageError for an altered file."""
    done = 0
    for name in sorted(name for name in list_files(manifest) if name.startswith(f"{which[:-1]}_vectors/")):
        path = export_dir / name
        try:
            path_of(export_dir, manifest, name)
            for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS, columns=[_KEYS[which], *VECTOR_COLUMNS]):
                yield batch.column(_KEYS[which]), decode_vectors(batch).reshape(-1, manifest["vector_size"])
                done += len(batch)
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DamageError(f"{path} cannot be read ({type(error).__name__}): {_WAY_OUT}") from None
        on_event("progress", {"step": "word2vec", "done": done, "total": total, "unit": which})
