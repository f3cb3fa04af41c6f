"""The size of a training: its work, and its bytes in memory and on a GPU. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.signature import most_streams
from surf2vec.trainer.model.objectives import shared_items
from surf2vec.trainer.model.tree_cut import cut_depth, shared_rows, subtree_rows
from surf2vec.trainer.model.trees import Tree, tree_bytes
from surf2vec.trainer.plan.sharing import ALONE, Sharing

BYTES = {"float32": 4, "bfloat16": 2}
TOKEN_BYTES = 4
SAMPLING_BYTES_PER_ITEM = 8 + 4 + 8 + 4 + 8  # alias thresholds, aliases, keep thresholds, corrections, counts
MAKING_BYTES_PER_ROW = 106  # while the sampling tables of a block are made, beside those of the block before
DEALING_BYTES_PER_ITEM = 8 + 1 + 4 + 4 + 8  # tokens, whether shared, block, row; temporary row numbers
TRAIL_BYTES_PER_ITEM = 8 + 4 + 4 + 4 + 4 + 8 + 8 * 12  # alias tables, corrections, L2, shares, counts; of eight threads
THINNING_BYTES_PER_ITEM = 8 + 8  # keep thresholds and counts; a tree needs no other sampling tables
ENTRY_BYTES = 64  # of gradient accumulation: row, pull, and their places in a sparse matrix while it is made
LONG_HISTORIES = 8  # assumes that users of a step have at most this many times the mean tokens
DEVICE_ROUNDING_BYTES = 64 * 10**6  # torch allocates pieces of 2 and 20 MiB, and temporary memory
DEVICE_SAMPLING_BYTES_PER_ITEM = 8 + 4 + 8 + 4  # alias thresholds, aliases, keep thresholds, corrections
DEVICE_TRAIL_BYTES_PER_ITEM = 8 + 4 + 4 + 4 + 4  # alias thresholds, aliases, corrections, L2, shares
MEASURED_TOKENS = 2 * 512  # of a micro-partition, for the curve
PASS_BYTES_PER_USER = 8 * 3 + 8 + 4  # start, end, hash; place in the order, learning rate
PASS_BYTES_PER_STREAM = 8  # its start
SCRATCH_BYTES_PER_USER = 8 + 4 + 4  # key, tokens kept, place among those with tokens
SCRATCH_BYTES_PER_STREAM = 4  # users with tokens
CUT_BYTES_PER_NODE = 4 + 4 + 8 + 8  # of an inner node of a cut tree: block and first row, and temporary arrays


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

    can_split: whether the item table may be divided into blocks. shared_bytes: rows in every block (the most frequent items, or
    the tree's rows above the cut). granule_bytes: a subtree, by which a block may exceed its share. cut_bytes: arrays that map
    nodes to blocks. sharing: how workers share the table. row_bytes: of a row of the table. trail_bytes: the trail's item table.
    """

    config: TrainConfig
    user_bytes: int
    work_bytes: int
    item_table_bytes: int
    sampling_bytes: int
    tree_bytes: int
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
        """Return the bytes of items in memory, with the copies that trainer/plan/sharing.py counts."""
        images_bytes = self.sharing.images(num_blocks) * self.block_bytes(num_blocks)
        shared_bytes = 2 * self.shared_bytes if self.sharing.is_sharded else 0  # the last state, and the changes
        trail_bytes = self.sharing.images(1) * self.trail_bytes + (
            TRAIL_BYTES_PER_ITEM * self.num_items if self.trail_bytes else 0
        )
        return images_bytes + shared_bytes + self.tables_bytes(num_blocks) + trail_bytes

    def accumulation_bytes(self, work: Work, num_blocks: int) -> int:
        """Return the further bytes of gradient accumulation: the ledger of a step's users, and its sparse product."""
        config, dims_bytes = self.config, self.config.interest_size * 4
        if config.accumulate == 1:
            return 0
        users = min(config.accumulate, work.most_users)
        tokens = min(work.most_tokens, LONG_HISTORIES * work.most_tokens * users // max(1, work.most_users))
        entries = tokens * (1 + config.negative)
        num_rows = min(entries, self.block_bytes(num_blocks) // self.row_bytes)
        return (2 * tokens + 3 * num_rows) * dims_bytes + entries * ENTRY_BYTES

    def tables_bytes(self, num_blocks: int) -> int:
        """Return the bytes of the sampling tables or the tree of an item block."""
        if num_blocks == 1:
            return self.sampling_bytes + self.tree_bytes
        if self.tree_bytes:
            return self.sampling_bytes + self.tree_bytes + self.cut_bytes + THINNING_BYTES_PER_ITEM * self.num_items
        making_bytes = MAKING_BYTES_PER_ROW * (self.block_bytes(num_blocks) // self.row_bytes)
        return -(-self.sampling_bytes // num_blocks) + making_bytes + DEALING_BYTES_PER_ITEM * self.num_items


def training_sizes(config: TrainConfig, num_items: int, tree: Tree | None) -> Sizes:
    """Return the sizes for a configuration; tree: of hierarchical softmax, if any."""
    num_outputs = tree.num_rows if tree else num_items
    row_bytes = config.interest_size * 4 + 4  # float32, and the row's optimizer state
    table_bytes = (num_outputs + num_items * config.has_inputs) * row_bytes
    return Sizes(
        config=config,
        user_bytes=config.interest_size * BYTES[config.dtype] + 4 if config.interest_size else 0,
        work_bytes=config.interest_size * 4 if config.dtype == "bfloat16" else 0,
        item_table_bytes=table_bytes,
        sampling_bytes=num_items * (THINNING_BYTES_PER_ITEM if tree else SAMPLING_BYTES_PER_ITEM),
        tree_bytes=tree_bytes(tree) if tree else 0,
        num_items=num_items,
        can_split=not (config.has_inputs or config.items_from),
        shared_bytes=(shared_rows(tree) if tree else shared_items(num_items)) * row_bytes,
        granule_bytes=int(subtree_rows(tree, cut_depth(tree)).max(initial=0)) * row_bytes if tree else 0,
        cut_bytes=len(tree.widths) * CUT_BYTES_PER_NODE if tree else 0,
        row_bytes=row_bytes,
        trail_bytes=2 * num_items * (config.trail_size * 4 + 4) if config.trail_size else 0,
    )


def device_bytes(work: Work, sizes: Sizes, num_blocks: int, has_trail: bool = False) -> int:
    """Return the bytes on the GPU beside its context: an item block with its tables, and two sets of buffers for
    micro-partitions, one of which is trained while the other is copied. With has_trail also the trail's item table with its
    tables, and scores for the curve.
    """
    block_bytes = sizes.block_bytes(num_blocks)
    tables_bytes = DEVICE_SAMPLING_BYTES_PER_ITEM * (block_bytes // sizes.row_bytes + 1)
    user_bytes = _row_bytes(sizes) + SCRATCH_BYTES_PER_USER + (sizes.user_bytes - 4 if sizes.work_bytes else 0)
    buffer_bytes = work.most_users * user_bytes + work.most_tokens * TOKEN_BYTES + _pass_bytes(work, sizes)
    buffer_bytes += most_streams(work.most_users) * SCRATCH_BYTES_PER_STREAM + _sample_bytes(sizes)
    if has_trail:
        tables_bytes += sizes.trail_bytes + DEVICE_TRAIL_BYTES_PER_ITEM * sizes.num_items
        buffer_bytes += sum(_trail_sample_bytes(sizes))
    exchanged_bytes = sizes.sharing.exchanged_bytes(block_bytes, sizes.shared_bytes)
    copies_bytes = exchanged_bytes * (2 + 2 * sizes.sharing.staleness)  # the last state, and exchanges in progress
    return DEVICE_ROUNDING_BYTES + copies_bytes + block_bytes + tables_bytes + 2 * buffer_bytes


def tray_bytes(work: Work, sizes: Sizes) -> int:
    """Return the pinned bytes on the host: a pass's arrays beside rows, on their way to the GPU, and rows for the curve."""
    places_bytes, scores_bytes = _trail_sample_bytes(sizes) if sizes.trail_bytes else (0, 0)
    return _pass_bytes(work, sizes) + places_bytes + 2 * (_sample_bytes(sizes) + scores_bytes)


def _pass_bytes(work: Work, sizes: Sizes) -> int:
    """Return the bytes of the arrays of a pass: of its users, its tokens, the bounds of its streams, the rows of its sample."""
    users_bytes = work.most_users * PASS_BYTES_PER_USER + (most_streams(work.most_users) + 1) * PASS_BYTES_PER_STREAM
    return users_bytes + work.most_tokens * TOKEN_BYTES + 8 * _sampled_rows(sizes)


def _trail_sample_bytes(sizes: Sizes) -> tuple[int, int]:
    """Return the bytes of the places and rows by which the curve measures the trail, and of their scores."""
    num_rows = MEASURED_TOKENS * (1 + sizes.config.trail_negative)
    return 8 * (num_rows + 2 * MEASURED_TOKENS), 4 * num_rows


def _sample_bytes(sizes: Sizes) -> int:
    return _sampled_rows(sizes) * _row_bytes(sizes)


def kept_sample_bytes(sizes: Sizes) -> int:
    """Return the bytes on the host of a micro-partition's sample: rows of users, items and negatives, and places."""
    return 8 * MEASURED_TOKENS * (4 + sizes.config.negative)


def _sampled_rows(sizes: Sizes) -> int:
    """Return the rows that the curve needs of a micro-partition: of a token's user, item and negatives."""
    return MEASURED_TOKENS * (2 + sizes.config.negative)


def _row_bytes(sizes: Sizes) -> int:
    """Return the bytes of a row as trained: float32 and the optimizer's state."""
    return (sizes.work_bytes or sizes.user_bytes - 4) + 4
