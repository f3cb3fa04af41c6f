"""The memory planner: from sizes and budgets to chunks and slots, or a refusal with the numbers. Pure.

Resident all the time are the item table, its sampling tables or tree, what the process already holds, and the
micro-partition under work where users rest in bfloat16. What is left of the budget is divided into slots for chunks of
users: one when all users fit, otherwise three (one is read ahead, one is trained, one is written behind).
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.config import TrainConfig
from trainer.errors import ConfigError, ResourceError

BYTES = {"float32": 4, "bfloat16": 2}
SAMPLING_BYTES_AN_ITEM = 8 + 4 + 8 + 4 + 8  # alias thresholds, aliases, keep thresholds, corrections, counts
SCHEDULE_BYTES_A_USER = 8 * 5 + 4  # hash, start, end, place in the order, offset; learning rate

_UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


@dataclass(frozen=True)
class Sizes:
    """Bytes of what a training holds: a user's row at rest and under work, the item table, and the tables beside it."""

    user_bytes: int
    work_bytes: int
    item_table_bytes: int
    item_extra_bytes: int


def training_sizes(config: TrainConfig, num_items: int, num_outputs: int, tree_bytes: int) -> Sizes:
    """The sizes for a configuration; `num_outputs`: rows that predict, one an item or those of a tree of `tree_bytes`."""
    row_bytes = config.vector_size * 4 + 4  # float32, and the row's optimizer state
    table_bytes = (num_outputs + num_items * config.has_inputs) * row_bytes
    sums_bytes = table_bytes if config.accumulate > 1 else 0
    return Sizes(
        user_bytes=config.vector_size * BYTES[config.dtype] + 4,
        work_bytes=config.vector_size * 4 if config.dtype == "bfloat16" else 0,
        item_table_bytes=table_bytes,
        item_extra_bytes=table_bytes
        + sums_bytes
        + num_items * SAMPLING_BYTES_AN_ITEM
        + tree_bytes,  # a copy is written
    )


@dataclass(frozen=True)
class Plan:
    """How a training uses memory and disk; `reasons` is the arithmetic in words."""

    num_partitions: int
    chunk_partitions: int
    num_chunks: int
    num_slots: int
    slot_bytes: int
    item_bytes: int
    overhead_bytes: int
    peak_bytes: int
    budget_bytes: int
    disk_bytes: int
    reasons: tuple[str, ...]

    @property
    def is_resident(self) -> bool:
        """Whether one chunk holds all users, which then stay in memory over all epochs."""
        return self.num_chunks == 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_training(
    users: Sequence[int], num_items: int, sizes: Sizes, budget_bytes: int, overhead_bytes: int, disk_free_bytes: int
) -> Plan:
    """Choose chunks and slots for `users[p]` users in micro-partition p.

    Raises ResourceError, with the numbers and the way out, when one micro-partition a slot does not fit the budget,
    or when the disk cannot hold two generations.
    """
    item_bytes = sizes.item_table_bytes + sizes.item_extra_bytes + max(users, default=0) * sizes.work_bytes
    left_bytes = budget_bytes - overhead_bytes - item_bytes
    user_bytes = sizes.user_bytes + SCHEDULE_BYTES_A_USER
    num_partitions = len(users)
    largest_bytes = max(users, default=0) * user_bytes
    all_bytes = sum(users) * user_bytes
    if all_bytes <= left_bytes:
        chunk_partitions, num_slots, slot_bytes = num_partitions, 1, all_bytes
    else:
        num_slots = 3
        chunk_partitions = max(left_bytes, 0) // (num_slots * largest_bytes)
        slot_bytes = chunk_partitions * largest_bytes
        if chunk_partitions == 0:
            needed = overhead_bytes + item_bytes + num_slots * largest_bytes
            raise ResourceError(
                f"the smallest plan needs {size(needed)}: {size(overhead_bytes)} for the process, {size(item_bytes)} for "
                f"{num_items:,} items and {num_slots} slots of {size(largest_bytes)} for a micro-partition of up to "
                f"{max(users):,} users, but the budget is {size(budget_bytes)}: raise --host-memory, lower "
                "train.vector_size, or raise store.partitions"
            )
    disk_bytes = 2 * (sum(users) * sizes.user_bytes + sizes.item_table_bytes)
    if disk_bytes > disk_free_bytes:
        raise ResourceError(
            f"two generations need {size(disk_bytes)} of disk and {size(disk_free_bytes)} are free: "
            "free space or lower train.vector_size"
        )
    num_chunks = -(-num_partitions // chunk_partitions)
    peak_bytes = overhead_bytes + item_bytes + num_slots * slot_bytes
    reasons = (
        f"{sum(users):,} users x {user_bytes:,} B = {size(all_bytes)}; {num_items:,} items take {size(item_bytes)}; "
        f"the process itself {size(overhead_bytes)}",
        f"all users fit the budget of {size(budget_bytes)}: one chunk stays in memory over all epochs"
        if num_chunks == 1
        else f"all users do not fit the budget of {size(budget_bytes)}: {num_chunks} chunks of {chunk_partitions} "
        f"micro-partitions go through {num_slots} slots of {size(slot_bytes)}, each loaded once an epoch",
        f"peak {size(peak_bytes)} of {size(budget_bytes)}; two generations on disk {size(disk_bytes)}",
    )
    return Plan(
        num_partitions, chunk_partitions, num_chunks, num_slots, slot_bytes, item_bytes,
        overhead_bytes, peak_bytes, budget_bytes, disk_bytes, reasons,
    )  # fmt: skip


def size(num_bytes: int) -> str:
    """Bytes for a person: `1.5 GB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def parse_bytes(text: str | int) -> int:
    """Bytes from `4GB`, `512MiB` or a plain number. Raises ConfigError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", str(text).lower())
    unit = match and (match[2] if match[2].endswith("b") or not match[2] else match[2] + "b")
    if not match or unit not in _UNITS:
        raise ConfigError(f"{text!r} is no size in bytes: write for instance 4GB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[unit])
