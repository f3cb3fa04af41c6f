"""The contents of the store's files: rows of users, item blocks, and the arrays in a file's image.

A *delta* is a second file of a micro-partition. It has only the rows that a night changed, so the others are not written again.
A manifest has it in the entry of the first file. Rows beyond the first file's belong to users who came later.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.model.rows import Items, Rows, TrailItems
from surf2vec.trainer.store.images import Arrays, Image, Shapes, image_of, make_image, read_image
from surf2vec.trainer.system.memory import Bytes

STORE_MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class Delta:
    """places uint32[k], ascending: the row numbers in the micro-partition."""

    places: NDArray[np.uint32]
    rows: Rows

    def arrays(self) -> Arrays:
        return {"rows": self.places, "vectors": self.rows.vectors, "squares": self.rows.squares}


def delta_in(arrays: Arrays) -> Delta:
    return Delta(arrays["rows"], Rows(arrays["vectors"], arrays["squares"]))


def lay_over(rows: Rows, delta: Delta) -> Rows:
    """Return the rows with the delta's in their places; new rows are appended."""
    num_rows = max(len(rows.squares), int(delta.places[-1]) + 1 if len(delta.places) else 0)
    vectors = np.zeros((num_rows, delta.rows.vectors.shape[1]), dtype=delta.rows.vectors.dtype)
    squares = np.zeros(num_rows, dtype=np.float32)
    vectors[: len(rows.squares)], squares[: len(rows.squares)] = rows.vectors, rows.squares
    vectors[delta.places], squares[delta.places] = delta.rows.vectors, delta.rows.squares
    return Rows(vectors, squares)


def merge_deltas(older: Delta, newer: Delta) -> Delta:
    """Return one delta with the effect of the older, then the newer."""
    places = np.union1d(older.places, newer.places)
    rows = lay_over(lay_over(Rows(older.rows.vectors[:0], older.rows.squares[:0]), older), newer)
    return Delta(places, Rows(rows.vectors[places], rows.squares[places]))


def read_rows(folder: Path, entry: dict[str, Any]) -> Rows:
    """Read the rows of a manifest's entry for users, as stored, with its delta. Raises DamageError when a file was altered."""
    with explain_damage(folder):
        rows = rows_in(read_image(folder / entry["file"], entry))
        delta = entry.get("delta")
        return lay_over(rows, delta_in(read_image(folder / delta["file"], delta).arrays)) if delta else rows


def rows_in(image: Image) -> Rows:
    return Rows(image.arrays["vectors"], image.arrays["squares"])


def items_of(arrays: Arrays) -> Items:
    """Return the item table, or block of it, in the arrays of a file; a TrailItems if it has lags."""
    names = [name for name in ("outputs", "inputs", "lags") if name in arrays]
    kind = TrailItems if "lags" in names else Items
    return kind(*(Rows(arrays[name], arrays[_squares(name)]) for name in names))


def _squares(name: str) -> str:
    """Return the name of the array with the optimizer's sums of a table's rows."""
    return f"{name[:-1]}_squares"


def image_of_rows(rows: Rows) -> Image:
    """Return the image of a users' file with a copy of these rows."""
    return image_of({"vectors": rows.vectors, "squares": rows.squares})


def image_of_items(items: Items, rows: NDArray[np.uint32] | None = None, spare: Bytes | None = None) -> Image:
    """Return the image of an item block's file with a copy of these items. rows: the table rows in one of several blocks."""
    arrays = {name: table.vectors for name, table in vars(items).items()}
    arrays |= {_squares(name): table.squares for name, table in vars(items).items()}
    return image_of(arrays if rows is None else arrays | {"rows": rows}, spare)


def shapes_of_items(num_outputs: int, vector_size: int, has_rows: bool) -> Shapes:
    """Return the arrays in the image of a table without inputs, as of `image_of_items`. has_rows: for one of several blocks.

    Vectors come first, so that rows of full cache lines are aligned to cache lines.
    """
    return {
        "outputs": (np.float32, (num_outputs, vector_size)),
        "inputs": (np.float32, (0, vector_size)),
        "output_squares": (np.float32, (num_outputs,)),
        "input_squares": (np.float32, (0,)),
    } | ({"rows": (np.uint32, (num_outputs,))} if has_rows else {})


def join_items(older: Items, newer: Items) -> Image:
    """Return the image of an item table with the items of `older`, then those of `newer`. Lags, if any, are the older's."""
    tables = {name: [rows, getattr(newer, name)] for name, rows in vars(older).items()}
    tables |= {"lags": [older.lags]} if isinstance(older, TrailItems) else {}
    counts = {name: sum(len(rows.squares) for rows in all_rows) for name, all_rows in tables.items()}
    shapes: Shapes = {name: (np.float32, (counts[name], rows[0].vectors.shape[1])) for name, rows in tables.items()}
    image = make_image(shapes | {_squares(name): (np.float32, (count,)) for name, count in counts.items()})
    for name, all_rows in tables.items():
        start = 0
        for rows in all_rows:
            places = slice(start, start + len(rows.squares))
            image.arrays[name][places], image.arrays[_squares(name)][places] = rows.vectors, rows.squares
            start = places.stop
    return image


@contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Add to a DamageError in the block how a person can repair it."""
    try:
        yield
    except DamageError as error:
        raise DamageError(
            f"{error}; nothing was trained on it: restore a copy, or remove {folder / STORE_MANIFEST} and the files in "
            f"{folder / 'pinned'} that name it, and train again"
        ) from None
