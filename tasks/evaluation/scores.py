"""Scores all items for users, one piece of the items at a time, as the item table may be larger than memory.

For dot products a piece is a run of items of fixed size, so that scores are the same bits for every budget and number of item
blocks. For trees it is an item block, with the rows that all blocks share.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.model.trees import log_probabilities
from surf2vec.trainer.plan.sizes import training_sizes
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.vectors import read_item_vectors

PIECE_BYTES = 8 * 10**6  # item vectors of a piece: few, as the scores of the held-out items are found first
GRAIN_ITEMS = 8192  # the size of a piece is a multiple: a projection multiplies so many rows at once
BATCH_SCORES = 16_000_000  # scores held at once: 64 MB, whatever the number of items
MIN_BATCH_USERS = 64
NODE_BYTES = 30

Vectors = NDArray[np.float32]
Change = Callable[[Vectors], Vectors]


@dataclass(frozen=True)
class Piece:
    """items int64[n], ascending; score: maps users' vectors float32[B, D] to scores float32[B, n], the best highest."""

    items: NDArray[np.int64]
    score: Callable[[Vectors], Vectors]


@dataclass(frozen=True)
class VectorScores:
    """Scores by dot product, in `num_pieces` pieces of at most `piece_items` items. piece_bytes: the memory to read one;
    read(start, stop): vectors of items, float32[stop - start, D].

    vector_size: D before any projection, so that pieces with and without projection have the same items.
    """

    read: Callable[[int, int], Vectors]
    num_items: int
    vector_size: int

    @property
    def piece_items(self) -> int:
        most = min(PIECE_BYTES // (4 * self.vector_size), BATCH_SCORES // MIN_BATCH_USERS)
        return min(self.num_items, max(most // GRAIN_ITEMS, 1) * GRAIN_ITEMS)

    @property
    def num_pieces(self) -> int:
        return -(-self.num_items // self.piece_items)

    @property
    def piece_bytes(self) -> int:
        return 3 * self.piece_items * 4 * self.vector_size  # as read, as changed, and the piece before

    def pieces(self) -> Iterator[Piece]:
        for start in range(0, self.num_items, self.piece_items):
            stop = min(start + self.piece_items, self.num_items)
            yield Piece(np.arange(start, stop), partial(_multiply, self.read(start, stop)))


@dataclass(frozen=True)
class TreeScores:
    """Scores by log-probabilities in a tree; read(block): the node rows of an item block, float32[R, D]."""

    read: Callable[[int], Vectors]
    blocks: ItemBlocks

    @property
    def num_pieces(self) -> int:
        return self.blocks.num_blocks

    @property
    def piece_items(self) -> int:
        cut = self.blocks.cut
        return int(np.bincount(cut.class_blocks).max()) if cut else len(self.blocks.counts)

    @property
    def piece_bytes(self) -> int:
        sizes = training_sizes(self.blocks.config, len(self.blocks.counts), self.blocks.tree)
        nodes_bytes = NODE_BYTES * 2 * self.piece_items  # memory of a pass down the tree, in addition to its rows
        return 2 * sizes.block_bytes(self.num_pieces) + nodes_bytes

    def pieces(self) -> Iterator[Piece]:
        cut, everything = self.blocks.cut, np.arange(len(self.blocks.counts))
        for block in range(self.num_pieces):
            items, tree = cut.part(block) if cut else (everything, self.blocks.tree)
            if len(items):  # a block may be empty if there are few items
                assert tree is not None, "the blocks have no tree to score items with"
                yield Piece(items, partial(log_probabilities, tree, self.read(block)))


def _multiply(vectors: Vectors, users: Vectors) -> Vectors:
    return users @ vectors.T


Scores = VectorScores | TreeScores


def score_of(generation: Generation, counts: NDArray[np.int64], change: Change = lambda rows: rows) -> Scores:
    """Return how a generation scores items: by vectors, or with the tree built from the training's counts, int64[V].

    change: applied to item rows before scoring, such as the projection of a release.
    """
    if generation.has_item_vectors:
        return VectorScores(
            lambda start, stop: change(read_item_vectors(generation, start, stop)), len(counts), generation.vector_size
        )
    blocks = ItemBlocks(generation.config, counts, generation.num_blocks)
    return TreeScores(
        lambda block: change(generation.read_item_block(block, blocks.num_shared_rows).outputs.vectors), blocks
    )
