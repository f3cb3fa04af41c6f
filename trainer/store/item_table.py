"""The item table out of the files of its blocks: whole, or a few items at a time where it is larger than memory.

The arrays of files are given by name, as `trainer/store/generation.py` tells. Those that are mapped from the disk take
no memory of the process: what is read of them is the page cache's.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.model.rows import Rows
from trainer.store.images import Arrays

PIECE_ROWS = 65_536
"""Rows are copied so many at a time, which bounds what lies between."""


def take_items(blocks: list[Arrays], last: int, start: int, stop: int) -> NDArray[np.float32]:
    """The vectors of items `start` to `stop`, float32[stop - start, D]. What several blocks have is that of block `last`."""
    vectors = np.empty((max(stop - start, 0), blocks[0]["outputs"].shape[1]), dtype=np.float32)
    for block in _in_order(blocks, last):
        rows = _rows(blocks, block)
        falls = np.flatnonzero(rows[1:] < rows[:-1])  # the shared rows ascend, then the block's own
        split = int(falls[0]) + 1 if len(falls) else 0
        for first, end in ((0, split), (split, len(rows))):
            found = slice(*(first + np.searchsorted(rows[first:end], (start, stop))))
            vectors[rows[found].astype(np.int64) - start] = blocks[block]["outputs"][found]
    return vectors


def _rows(blocks: list[Arrays], block: int) -> NDArray[np.uint32]:
    """The rows of the table that a block has."""
    arrays = blocks[block]
    return arrays["rows"] if "rows" in arrays else np.arange(len(arrays["outputs"]), dtype=np.uint32)


def _in_order(blocks: list[Arrays], last: int) -> list[int]:
    return [*(block for block in range(len(blocks)) if block != last), last]


def fill_outputs(outputs: Rows, blocks: list[Arrays], last: int, wanted: NDArray[np.uint32] | None = None) -> None:
    """Put the rows of several blocks where they belong. What several blocks have is that of block `last`.

    wanted uint32[n]: which rows of the table the outputs are, where they are not all; others of the blocks are left out.
    """
    places = None if wanted is None else _places(blocks, wanted)
    for block in _in_order(blocks, last):
        rows, vectors, squares = _rows(blocks, block), blocks[block]["outputs"], blocks[block]["output_squares"]
        for start in range(0, len(rows), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            into = rows[piece] if places is None else places[rows[piece]]
            is_wanted = into >= 0
            outputs.vectors[into[is_wanted]] = vectors[piece][is_wanted]
            outputs.squares[into[is_wanted]] = squares[piece][is_wanted]


def _places(blocks: list[Arrays], wanted: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Where each row of the table is among those wanted, int32[V]; -1: nowhere."""
    num_rows = max(count_rows(blocks), int(wanted.max(initial=0)) + 1)
    places = np.full(num_rows, -1, dtype=np.int32)
    places[wanted] = np.arange(len(wanted), dtype=np.int32)
    return places


def count_rows(blocks: list[Arrays]) -> int:
    """The rows of the whole table."""
    return max(int(_rows(blocks, block).max(initial=0)) + 1 for block in range(len(blocks)))
