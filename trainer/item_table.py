"""The item table out of the files of its blocks: whole, or a few items at a time where it is larger than memory.

The arrays of files are given by name, as `trainer/store.py` tells. Those that are mapped from the disk take no memory of the
process: what is read of them is the page cache's.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.images import Arrays
from trainer.rows import Items, Rows


def take_items(blocks: list[Arrays], start: int, stop: int) -> NDArray[np.float32]:
    """The vectors of items `start` to `stop`, float32[stop - start, D]; block b of B has those of items b, b + B, ..."""
    vectors = np.empty((max(stop - start, 0), blocks[0]["outputs"].shape[1]), dtype=np.float32)
    num_blocks = len(blocks)
    for block, arrays in enumerate(blocks):
        first, last = (-(-(bound - block) // num_blocks) for bound in (start, stop))
        vectors[(block - start) % num_blocks :: num_blocks] = arrays["outputs"][first:last]
    return vectors


def join_blocks(blocks: list[Arrays], last: int) -> Items:
    """The item table from its blocks, in order. Rows that several blocks have are those of block `last`."""
    inputs = Rows(
        blocks[0]["inputs"], blocks[0]["input_squares"]
    )  # none of several blocks: what has any is not divided
    if len(blocks) == 1:
        return Items(Rows(blocks[0]["outputs"], blocks[0]["output_squares"]), inputs)
    block_rows = [
        arrays.get("rows", np.arange(len(arrays["outputs"]), dtype=np.int64) * len(blocks) + block)
        for block, arrays in enumerate(blocks)
    ]
    num_rows = max(int(rows[-1]) + 1 if len(rows) else 0 for rows in block_rows)
    outputs = Rows(np.empty((num_rows, blocks[0]["outputs"].shape[1]), np.float32), np.empty(num_rows, np.float32))
    for block in [*(block for block in range(len(blocks)) if block != last), last]:
        outputs.vectors[block_rows[block]] = blocks[block]["outputs"]
        outputs.squares[block_rows[block]] = blocks[block]["output_squares"]
    return Items(outputs, inputs)
