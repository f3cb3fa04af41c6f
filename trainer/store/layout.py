"""What is in a file of the store: the rows of users, an item block, and where each array lies in the file's image.

A *delta* has rows of a micro-partition beside its file: what a night changed, without the others being written again. In a
manifest it stands in the entry of that file. Rows beyond the file's are those of users who came since.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.model.rows import Items, Rows
from trainer.store.images import Arrays, Image, Shapes, image_of, read_image
from trainer.store.manifests import explain_damage
from trainer.system.memory import Bytes


@dataclass(frozen=True)
class Delta:
    """places uint32[k], ascending: which rows of a micro-partition these are."""

    places: NDArray[np.uint32]
    rows: Rows

    def arrays(self) -> Arrays:
        """As its file has it."""
        return {"rows": self.places, "vectors": self.rows.vectors, "squares": self.rows.squares}


def delta_in(arrays: Arrays) -> Delta:
    """The delta in the arrays of its file."""
    return Delta(arrays["rows"], Rows(arrays["vectors"], arrays["squares"]))


def lay_over(rows: Rows, delta: Delta) -> Rows:
    """The rows with those of the delta in their places; as many as either has."""
    num_rows = max(len(rows.squares), int(delta.places[-1]) + 1 if len(delta.places) else 0)
    vectors = np.zeros((num_rows, delta.rows.vectors.shape[1]), dtype=delta.rows.vectors.dtype)
    squares = np.zeros(num_rows, dtype=np.float32)
    vectors[: len(rows.squares)], squares[: len(rows.squares)] = rows.vectors, rows.squares
    vectors[delta.places], squares[delta.places] = delta.rows.vectors, delta.rows.squares
    return Rows(vectors, squares)


def merge_deltas(older: Delta, newer: Delta) -> Delta:
    """One delta that does what laying over the older and then the newer does."""
    places = np.union1d(older.places, newer.places)
    rows = lay_over(lay_over(Rows(older.rows.vectors[:0], older.rows.squares[:0]), older), newer)
    return Delta(places, Rows(rows.vectors[places], rows.squares[places]))


def read_rows(folder: Path, entry: dict[str, Any]) -> Rows:
    """The rows of a manifest's entry for users, as stored, with its delta. Raises DamageError when a file was altered."""
    with explain_damage(folder):
        rows = rows_in(read_image(folder / entry["file"], entry))
        delta = entry.get("delta")
        return lay_over(rows, delta_in(read_image(folder / delta["file"], delta).arrays)) if delta else rows


def rows_in(image: Image) -> Rows:
    """The users' rows whose file an image is."""
    return Rows(image.arrays["vectors"], image.arrays["squares"])


def items_in(image: Image) -> Items:
    """The item table, or block of it, whose file an image is."""
    return items_of(image.arrays)


def items_of(arrays: Arrays) -> Items:
    """The same from the arrays of the file."""
    return Items(Rows(arrays["outputs"], arrays["output_squares"]), Rows(arrays["inputs"], arrays["input_squares"]))


def image_of_rows(rows: Rows) -> Image:
    """The image of a users' file with a copy of these rows."""
    return image_of({"vectors": rows.vectors, "squares": rows.squares})


def image_of_items(items: Items, rows: NDArray[np.uint32] | None = None, spare: Bytes | None = None) -> Image:
    """The image of an item block's file with a copy of this table; `rows`: which rows of the table a block of several has."""
    arrays = {
        "outputs": items.outputs.vectors, "inputs": items.inputs.vectors,
        "output_squares": items.outputs.squares, "input_squares": items.inputs.squares,
    }  # fmt: skip
    return image_of(arrays if rows is None else arrays | {"rows": rows}, spare)


def shapes_of_items(num_outputs: int, vector_size: int, num_inputs: int = 0, has_rows: bool = False) -> Shapes:
    """The arrays in the image of a table, as `image_of_items` makes it; has_rows: of a block of several, which has no inputs.

    Vectors come first, so that rows which are whole cache lines begin where one does.
    """
    return {
        "outputs": (np.float32, (num_outputs, vector_size)), "inputs": (np.float32, (num_inputs, vector_size)),
        "output_squares": (np.float32, (num_outputs,)), "input_squares": (np.float32, (num_inputs,)),
    } | ({"rows": (np.uint32, (num_outputs,))} if has_rows else {})  # fmt: skip
