"""How fast this machine is at the work that is planned: measured for a moment before a training, so that it can say when
it will be done. Tokens are trained on rows like those to come; the disk writes and reads a file of the size to come.
"""

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.config import TrainConfig
from trainer.draws import epoch_key, mix_array
from trainer.kernels import Kernel
from trainer.kernels.first_rows import begin_items, begin_users
from trainer.kernels.signature import Pass
from trainer.model.objectives import make_sampling
from trainer.model.trees import make_tree
from trainer.plan.prediction import Rates
from trainer.plan.sharing import sent_by_sum
from trainer.store.images import image_of, read_image, write_image
from trainer.system.files import TEMPORARY_SUFFIX, sync_file, told_if_unwritten
from trainer.workers.group import Workers

MAX_USERS, MAX_ITEMS, MAX_TABLE_BYTES = 20_000, 200_000, 10**8
TRY_SHARE, TRY_SECONDS = 0.02, 0.5
"""A first share of the users; where it takes as long as this the others are not tried (wide trees)."""
MAX_FILE_BYTES = 64 * 10**6
NETWORK_BYTES = 4 * 10**6
SHARE = 0.01
"""No more tokens are tried than this share of the training's: a small one ends before it could be predicted."""


def measure_rates(
    kernel: Kernel, config: TrainConfig, num_items: int, tokens_a_user: float, num_tokens: int, folder: Path
) -> Rates:
    """Rates of `kernel` and of the disk that `folder` is on; `num_tokens`: those of the whole training."""
    length = max(1, round(tokens_a_user))
    num_users = int(min(MAX_USERS, max(1, num_tokens * SHARE / length)))
    num_tried = min(num_items, MAX_ITEMS, max(2, MAX_TABLE_BYTES // (4 * config.vector_size + 4)))
    tokens_per_second = _train_moment(kernel, config, num_tried, num_users, length)
    read, written = _try_disk(folder, min(MAX_FILE_BYTES, num_users * config.vector_size * 4))
    return Rates(tokens_per_second / _tree_growth(config, num_tried, num_items), read, written)


def measure_network(workers: Workers) -> float:
    """Bytes a second that a worker sends while all add up numbers."""
    import torch

    numbers = torch.zeros(NETWORK_BYTES // 4)
    workers.wait(workers.add_up(numbers))  # the first makes the connections
    started = time.perf_counter()
    workers.wait(workers.add_up(numbers))
    return sent_by_sum(NETWORK_BYTES, workers.num) / (time.perf_counter() - started)


def _tree_growth(config: TrainConfig, num_tried: int, num_items: int) -> float:
    """How many times as many rows a token touches in a tree of all items as in one of those that were tried."""
    if not config.hs or num_items <= num_tried:
        return 1.0
    growth = num_items / num_tried
    return math.sqrt(growth) if config.tree == "two_level" else 1 + math.log(growth) / math.log(num_tried)


def _train_moment(kernel: Kernel, config: TrainConfig, num_items: int, num_users: int, length: int) -> float:
    """Tokens a second in one pass over users of `length` tokens each, which follow Zipf's law."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, num_items + 1)
    bounds = np.cumsum(shares / shares.sum())
    tokens = np.minimum(np.searchsorted(bounds, rng.random(num_users * length)), num_items - 1).astype(np.int32)
    counts = np.bincount(tokens, minlength=num_items)
    offsets = np.arange(num_users + 1, dtype=np.int64) * length
    hashes = mix_array(np.arange(num_users, dtype=np.uint64))
    tree = make_tree(config, counts)
    work = Pass(
        config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:], hashes=hashes, order=np.arange(num_users),
        alphas=np.full(num_users, config.alpha, dtype=np.float32), sampling=make_sampling(counts, config), tree=tree,
        recency=config.recency, epoch_key=epoch_key(config.seed, 0),
    )  # fmt: skip
    users, items = begin_users(config, hashes), begin_items(config, num_items, tree.num_rows if tree else num_items)
    for num_tried in (max(1, int(num_users * TRY_SHARE)), num_users):
        part = replace(work, order=work.order[:num_tried], alphas=work.alphas[:num_tried])
        started = time.perf_counter()
        kernel.train_users(users, items, part)
        seconds = time.perf_counter() - started
        if seconds > TRY_SECONDS:
            break
    return length * num_tried / seconds


def _try_disk(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Bytes a second read from and written to the disk, durably."""
    image = image_of({"vectors": np.ones(max(1, num_bytes // 4), dtype=np.float32)})
    with told_if_unwritten(folder, f"{image.num_bytes:,} bytes to try the disk"):
        path = folder / f".rate.{os.getpid()}{TEMPORARY_SUFFIX}"
        try:
            started = time.perf_counter()
            about = write_image(path, image)
            sync_file(path)
            between = time.perf_counter()
            read_image(path, about, image.pages)
            ended = time.perf_counter()
        finally:
            path.unlink(missing_ok=True)
    return image.num_bytes / (ended - between), image.num_bytes / (between - started)
