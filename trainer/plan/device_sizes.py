"""What a training with a GPU holds on it, and what it holds pinned on the host, so that copies run beside the training."""

from trainer.plan.sizes import TOKEN_BYTES, Sizes, Work
from trainer.system.memory import DEVICE_CONTEXT_BYTES

DEVICE_ROUNDING_BYTES = 64 * 10**6  # torch takes memory in pieces of 2 and 20 MiB; and what it needs for a moment
DEVICE_SAMPLING_BYTES_AN_ITEM = 8 + 4 + 8 + 4  # alias thresholds, aliases, keep thresholds, corrections
DEVICE_SAMPLE_BYTES = (
    2 * 512 * 32_768 * 4
)  # tokens measured of a micro-partition, by the numbers the kernel holds for one
PASS_BYTES_A_USER = 8 * 4 + 4  # start, end, hash, place in the order; learning rate
SCRATCH_BYTES_A_USER = 8 + 4  # key, tokens kept


def device_bytes(work: Work, sizes: Sizes, num_blocks: int) -> int:
    """On the GPU: its context; an item block with its tables; places for two micro-partitions, one trained and one coming;
    what training one writes for itself; and the item rows that the curve looks at.
    """
    users, tokens = work.most_users, work.most_tokens
    block_bytes = sizes.block_bytes(num_blocks)
    tables_bytes = DEVICE_SAMPLING_BYTES_AN_ITEM * (block_bytes // _row_bytes(sizes) + 1)
    halves_bytes = users * (sizes.user_bytes - 4) if sizes.work_bytes else 0
    place_bytes = users * (_row_bytes(sizes) + PASS_BYTES_A_USER) + tokens * TOKEN_BYTES
    scratch_bytes = users * SCRATCH_BYTES_A_USER + tokens * TOKEN_BYTES
    sample_bytes = min(block_bytes, DEVICE_SAMPLE_BYTES)
    index_bytes = 2 * 8 * (sample_bytes // _row_bytes(sizes) + 1)
    exchanged_bytes = sizes.sharing.exchanged_bytes(block_bytes, sizes.shared_bytes)
    copies_bytes = exchanged_bytes * (2 + 2 * sizes.sharing.staleness)  # as it was, and what is under way
    held_bytes = copies_bytes + (
        block_bytes + tables_bytes + 2 * place_bytes + halves_bytes + scratch_bytes + sample_bytes + index_bytes
    )
    return DEVICE_CONTEXT_BYTES + DEVICE_ROUNDING_BYTES + held_bytes


def tray_bytes(work: Work, sizes: Sizes, num_blocks: int) -> int:
    """On the host, pinned: what a pass has beside rows, on its way to the GPU, and the rows that the curve looks at."""
    sample_bytes = min(sizes.block_bytes(num_blocks), DEVICE_SAMPLE_BYTES)
    index_bytes = 8 * (sample_bytes // _row_bytes(sizes) + 1)
    pass_bytes = work.most_users * PASS_BYTES_A_USER + work.most_tokens * TOKEN_BYTES
    return pass_bytes + sample_bytes + index_bytes


def _row_bytes(sizes: Sizes) -> int:
    """A row under work: float32 and the optimizer's state, however it rests."""
    return (sizes.work_bytes or sizes.user_bytes - 4) + 4
