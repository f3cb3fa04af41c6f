"""What is in a file of the store: the rows of users, an item block, and where each array lies in the file's image."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.model.rows import Items, Rows
from trainer.store.deltas import delta_in, lay_over
from trainer.store.images import Arrays, Image, Shapes, image_of, read_image
from trainer.store.manifests import (
    tell_way_out,
)
from trainer.system.pages import Bytes


def read_rows(folder: Path, entry: dict[str, Any]) -> Rows:
    """The rows of users that a manifest's entry names, as stored: its file's, and what its delta changed.

    Raises DamageError when a file was altered.
    """
    with tell_way_out(folder):
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
    return Items(Rows(arrays["outputs"], arrays["output_squares"]), Rows(arrays["inputs"], arrays["input_squares"]))


def image_of_rows(rows: Rows, spare: Bytes | None = None) -> Image:
    """The image of a users' file with a copy of these rows."""
    return image_of({"vectors": rows.vectors, "squares": rows.squares}, spare)


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
