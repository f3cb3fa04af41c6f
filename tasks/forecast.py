"""What a training would take, asked by its size alone: the trainer's own planner, on this machine as it is now."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config import ResourcesConfig
from tasks.devices import pick_device
from trainer.config import TrainConfig
from trainer.kernels import pick_kernel
from trainer.preparation import make_plan, warm_up
from trainer.sizes import Work, training_sizes
from trainer.trees import make_tree
from trainer.units import parse_bytes


@dataclass(frozen=True)
class Volume:
    """How much there is: users, items, tokens of all users, and micro-partitions."""

    users: int
    items: int
    tokens: int
    partitions: int


def plan_size(root: Path, volume: Volume, config: TrainConfig, resources: ResourcesConfig) -> dict[str, Any]:
    """The plan for a training of this size whose store is on the disk of `root`; the answer of `surf2vec plan`.

    With a budget on the GPU the kernel for it is planned; where there is no GPU, with the CPU's speed.
    Raises ResourceError, with the numbers and the way out, when nothing fits.
    """
    folder = next(parent for parent in (root.resolve(), *root.resolve().parents) if parent.is_dir())
    kernel = pick_kernel(pick_device(config, resources).kernel, config)
    warm_up(kernel, config)
    tree = make_tree(config, zipf_counts(volume.items, volume.tokens)) if config.hs else None
    work = Work(spread_users(volume.users, volume.partitions), volume.tokens, config.epochs, config.commit_seconds)
    device_bytes = parse_bytes(resources.device_memory) if resources.device_memory else None
    memory_bytes = parse_bytes(resources.host_memory), device_bytes
    plan = make_plan(kernel, config, work, training_sizes(config, volume.items, tree), memory_bytes, folder)
    return {"kernel": kernel.name, "kernel_reason": kernel.reason} | plan.to_json()


def spread_users(num_users: int, partitions: int) -> list[int]:
    """Users of each micro-partition: even shares, but one as large as the largest of a hash is likely to be (4 deviations)."""
    shares = [num_users // partitions + (p < num_users % partitions) for p in range(partitions)]
    extra = min(math.ceil(4 * math.sqrt(shares[0])), shares[-1]) if partitions > 1 else 0
    return [shares[0] + extra, *shares[1:-1], shares[-1] - extra] if extra else shares


def zipf_counts(num_items: int, num_tokens: int) -> np.ndarray:
    """Tokens of each item by Zipf's law, int64[V]: what a tree is built of when the items are not known yet."""
    shares = 1 / np.arange(1, num_items + 1)
    return np.maximum(shares * (num_tokens / shares.sum()), 1).astype(np.int64)
