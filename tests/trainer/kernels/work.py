"""Work for kernels: small random histories under any settings, and the rows to train."""

from typing import Any

import numpy as np

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.kernels.first_rows import begin_items, begin_users
from surf2vec.trainer.kernels.signature import Pass, TrainUsers
from surf2vec.trainer.model.objectives import make_sampling
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.model.trees import make_tree
from tests.trainer.kernels import reference

SETTINGS: dict[str, dict[str, Any]] = {
    "dbow": {},
    "dbow small tiles": {"tile_users": 3},
    "dbow one lane": {"tile_users": 1},
    "dbow negative sampling": {"objective": "negative_sampling"},
    "dbow huffman": {"hs": 1},
    "dbow two levels": {"hs": 1, "tree": "two_level"},
    "dbow balanced": {"hs": 1, "tree": "balanced", "tree_branching": 4},
    "dm": {"dm": 1},
    "dm negative sampling": {"dm": 1, "objective": "negative_sampling"},
    "dm huffman": {"dm": 1, "hs": 1},
    "dm two levels": {"dm": 1, "hs": 1, "tree": "two_level"},
}
"""Every supported architecture with every supported objective."""


def make_config(**settings: Any) -> TrainConfig:
    plain: dict[str, Any] = {
        "parts": "interest", "vector_size": 19, "epochs": 1, "negative": 5, "threads": 1, "window": 3, "l2": 0.1, "item_l2": 0.1,
        "sample": 0.01, "alpha": 0.1,
    }  # fmt: skip
    return TrainConfig(**(plain | settings))


def make_work(config: TrainConfig, num_users: int = 40, num_items: int = 30, recency: float = 2.0) -> Pass:
    """Random histories; repeated items and empty histories among them."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 12, num_users)))).astype(np.int64)
    tokens = np.minimum(rng.zipf(1.3, offsets[-1]) - 1, num_items - 1).astype(np.int32)
    counts = np.bincount(tokens, minlength=num_items)
    return Pass(
        config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:],
        hashes=rng.integers(0, 2**63, num_users).astype(np.uint64), order=rng.permutation(num_users),
        alphas=np.linspace(0.1, 0.05, num_users).astype(np.float32), sampling=make_sampling(counts, config),
        tree=make_tree(config, counts), recency=recency, epoch_key=epoch_key(1, 0),
    )  # fmt: skip


def make_rows(work: Pass) -> tuple[Rows, Items]:
    """First rows; outputs that are not zero, so that everything moves."""
    num_items = len(work.sampling.aliases)
    items = begin_items(work.config, num_items, work.tree.num_rows if work.tree else num_items)
    items.outputs.vectors[:] = np.random.default_rng(1).normal(0, 0.3, items.outputs.vectors.shape)
    return begin_users(work.config, work.hashes), items


def train_users_of(kernel: str, config: TrainConfig) -> TrainUsers:
    """The function of the kernel `cpu` or `gpu`, or of the reference."""
    if kernel == "gpu":
        from tests.trainer.kernels.test_gpu import gpu  # a copy that Triton interprets

        return gpu.train_users  # type: ignore[no-any-return]
    return reference.train_users if kernel == "reference" else pick_kernel(kernel, config).train_users


def arrays(users: Rows, items: Items) -> list[np.ndarray]:
    """All parameters and optimizer state."""
    return [array for rows in (users, items.outputs, items.inputs) for array in (rows.vectors, rows.squares)]
