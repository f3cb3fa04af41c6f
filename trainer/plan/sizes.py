"""The size of a training: its work, and its bytes in memory and on a GPU. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model.objectives import shared_items
from surf2vec.trainer.model.tree_cut import cut_depth, shared_rows, subtree_rows
from surf2vec.trainer.model.trees import Tree, tree_bytes
from surf2vec.trainer.plan.sharing import ALONE, Sharing

BYTES = {"float32": 4, "bfloat16": 2}
TOKEN_BYTES = 4
SAMPLING_BYTES_PER_ITEM = 32  # alias tables, keep thresholds, corrections, counts
THINNING_BYTES_PER_ITEM = 16  # keep thresholds and counts; a tree needs no other sampling tables
MAKING_BYTES_PER_ROW = 106  # while the sampling tables of a block are made, beside those of the block before
DEALING_BYTES_PER_ITEM = 25  # which block has what; temporary row numbers
TRAIL_BYTES_PER_ITEM = 128  # alias tables, corrections, L2, shares, counts; of eight threads
CUT_BYTES_PER_NODE = 24  # of an inner node of a cut tree: block and first row, and temporary arrays
ENTRY_BYTES = 64  # of gradient accumulation: row, pull, and their places in a sparse matrix while it is made
LONG_HISTORIES = 8  # assumes that users of a step have at most this many times the mean tokens
MEASURED_TOKENS = 2 * 512  # of a micro-partition, for the curve
DEVICE_ROUNDING_BYTES = 64 * 10**6  # torch allocates pieces of 2 and 20 MiB, and temporary memory
DEVICE_BYTES_PER_ITEM = 24  # alias tables, corrections, and keep thresholds or L2 and shares, of each part
PASS_BYTES_PER_USER = 37  # start, end, hash, place in the order, learning rate; with the bounds of streams
SCRATCH_BYTES_PER_USER = 17  # key, tokens kept, place among those with tokens


@dataclass(frozen=True)
class Work:
    """The work of a training: users and tokens of each micro-partition, epochs, and seconds between commits."""

    users: Sequence[int]
    tokens: Sequence[int]
    epochs: int
    commit_seconds: float

    @property
    def num_users(self) -> int:
        return sum(self.users)

    @property
    def num_tokens(self) -> int:
        """Of an epoch."""
        return sum(self.tokens)

    @property
    def most_users(self) -> int:
        """Of a micro-partition."""
        return max(self.users, default=0)

    @property
    def most_tokens(self) -> int:
        """Of a micro-partition."""
        return max(self.tokens, default=0)


@dataclass(frozen=True)
class Sizes:
    """The bytes of a training: a user's row as stored and as trained, the item table, and its other tables.

    tables_bytes: sampling tables, or the tree. can_split: whether the item table may be divided into blocks. shared_bytes: rows
    in every block (the most frequent items, or the tree's rows above the cut). granule_bytes: a subtree, by which a block may
    exceed its share. cut_bytes: what a tree in blocks needs besides. sharing: how workers share the table. row_bytes: of a row
    of the table. trail_bytes: the trail's item table.
    """

    config: TrainConfig
    user_bytes: int
    work_bytes: int
    item_table_bytes: int
    tables_bytes: int
    num_items: int
    can_split: bool
    shared_bytes: int = 0
    granule_bytes: int = 0
    cut_bytes: int = 0
    sharing: Sharing = ALONE
    row_bytes: int = 4
    trail_bytes: int = 0

    def block_bytes(self, num_blocks: int) -> int:
        """Return the bytes of an item block: the rows of the table that are in memory together."""
        if num_blocks == 1:
            return self.item_table_bytes
        own_bytes = -(-(self.item_table_bytes - self.shared_bytes) // num_blocks)
        return self.shared_bytes + min(own_bytes + self.granule_bytes, self.item_table_bytes - self.shared_bytes)

    def item_bytes(self, num_blocks: int) -> int:
        """Return the bytes of items in memory: blocks with the copies that trainer/plan/sharing.py counts, and their tables."""
        num_bytes = self.sharing.images(num_blocks) * self.block_bytes(num_blocks)
        if self.sharing.is_sharded:
            num_bytes += self.sharing.copies * self.shared_bytes
        if self.trail_bytes:
            num_bytes += self.trail_images_bytes + TRAIL_BYTES_PER_ITEM * self.num_items
        return num_bytes + self.block_tables_bytes(num_blocks)

    @property
    def trail_images_bytes(self) -> int:
        """The bytes of the trail's item table, of its copy for a commit, and of copies for exchanges."""
        return (2 + self.sharing.copies) * self.trail_bytes

    def block_tables_bytes(self, num_blocks: int) -> int:
        """Return the bytes of the sampling tables or the tree of an item block."""
        if num_blocks == 1 or self.cut_bytes:
            return self.tables_bytes + (self.cut_bytes if num_blocks > 1 else 0)
        row_bytes = SAMPLING_BYTES_PER_ITEM + MAKING_BYTES_PER_ROW
        return row_bytes * self._block_rows(num_blocks) + DEALING_BYTES_PER_ITEM * self.num_items

    def accumulation_bytes(self, work: Work, num_blocks: int) -> int:
        """Return the further bytes of gradient accumulation: the ledger of a step's users, and its sparse product."""
        config, dims_bytes = self.config, self.config.interest_size * 4
        if config.accumulate == 1:
            return 0
        users = min(config.accumulate, work.most_users)
        tokens = min(work.most_tokens, LONG_HISTORIES * work.most_tokens * users // max(1, work.most_users))
        entries = tokens * (1 + config.negative)
        num_rows = min(entries, self._block_rows(num_blocks))
        return (2 * tokens + 3 * num_rows) * dims_bytes + entries * ENTRY_BYTES

    def _block_rows(self, num_blocks: int) -> int:
        return self.block_bytes(num_blocks) // self.row_bytes


def training_sizes(config: TrainConfig, num_items: int, tree: Tree | None) -> Sizes:
    """Return the sizes for a configuration; tree: of hierarchical softmax, if any."""
    num_outputs = tree.num_rows if tree else num_items
    row_bytes = config.interest_size * 4 + 4  # float32, and the row's optimizer state
    table_bytes = (num_outputs + num_items * config.has_inputs) * row_bytes
    thinning_bytes = num_items * THINNING_BYTES_PER_ITEM
    return Sizes(
        config=config,
        user_bytes=config.interest_size * BYTES[config.dtype] + 4 if config.interest_size else 0,
        work_bytes=config.interest_size * 4 if config.dtype == "bfloat16" else 0,
        item_table_bytes=table_bytes,
        tables_bytes=tree_bytes(tree) + thinning_bytes if tree else num_items * SAMPLING_BYTES_PER_ITEM,
        num_items=num_items,
        can_split=not (config.has_inputs or config.items_from),
        shared_bytes=(shared_rows(tree) if tree else shared_items(num_items)) * row_bytes,
        granule_bytes=int(subtree_rows(tree, cut_depth(tree)).max(initial=0)) * row_bytes if tree else 0,
        cut_bytes=len(tree.widths) * CUT_BYTES_PER_NODE + thinning_bytes if tree else 0,
        row_bytes=row_bytes,
        trail_bytes=2 * num_items * (config.trail_size * 4 + 4) if config.trail_size else 0,
    )


def device_bytes(work: Work, sizes: Sizes, num_blocks: int, has_trail: bool = False) -> int:
    """Return the bytes on the GPU beside its context: an item block with its tables, and two sets of buffers for
    micro-partitions, one of which is trained while the other is copied. With has_trail also the trail's item table with its
    tables, and scores for the curve.
    """
    block_bytes = sizes.block_bytes(num_blocks)
    items_bytes = block_bytes + DEVICE_BYTES_PER_ITEM * (block_bytes // sizes.row_bytes + 1)
    if has_trail:
        items_bytes += sizes.trail_bytes + DEVICE_BYTES_PER_ITEM * sizes.num_items
    halves_bytes = sizes.user_bytes - 4 if sizes.work_bytes else 0
    user_bytes = _row_bytes(sizes) + halves_bytes + PASS_BYTES_PER_USER + SCRATCH_BYTES_PER_USER
    tokens_bytes = 3 * work.most_tokens * TOKEN_BYTES  # as they are, the targets, and these in another order
    buffer_bytes = work.most_users * user_bytes + tokens_bytes + _curve_bytes(sizes, has_trail)
    exchanged_bytes = sizes.sharing.exchanged_bytes(block_bytes, sizes.shared_bytes) + has_trail * sizes.trail_bytes
    copies_bytes = exchanged_bytes * sizes.sharing.copies
    return DEVICE_ROUNDING_BYTES + copies_bytes + items_bytes + 2 * buffer_bytes


def tray_bytes(work: Work, sizes: Sizes) -> int:
    """Return the pinned bytes on the host: a pass's arrays beside rows, on their way to the GPU, and rows for the curve."""
    users_bytes = work.most_users * PASS_BYTES_PER_USER + work.most_tokens * TOKEN_BYTES
    return users_bytes + 2 * _curve_bytes(sizes, sizes.trail_bytes > 0)


def _curve_bytes(sizes: Sizes, has_trail: bool) -> int:
    """Return the bytes by which the curve measures a micro-partition on a GPU: rows of a token's user, item and negatives with
    their numbers, and the trail's scores with their places.
    """
    trail_bytes = 16 + 12 * (1 + sizes.config.trail_negative) if has_trail else 0
    return MEASURED_TOKENS * ((2 + sizes.config.negative) * (_row_bytes(sizes) + 8) + trail_bytes)


def _row_bytes(sizes: Sizes) -> int:
    """Return the bytes of a row as trained: float32 and the optimizer's state."""
    return (sizes.work_bytes or sizes.user_bytes - 4) + 4
