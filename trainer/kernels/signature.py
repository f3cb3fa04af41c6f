"""The one signature of all kernels: `train_users(users, items, work) -> int`.

A kernel trains the users of `work.order` once, each over all its tokens, and changes both tables in place. Items move at once,
or after every `accumulate` users. It returns how many tokens subsampling kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.model.objectives import Sampling
from trainer.model.rows import Items, Rows
from trainer.model.trees import Tree


@dataclass(frozen=True)
class Pass:
    """The input of one call of a kernel.

    tokens int32[T]; starts, ends int64[N]: user i's tokens are tokens[starts[i]:ends[i]]; hashes uint64[N];
    order int64[M]: the rows to train, in this order; alphas float32[M]: their learning rates;
    recency: tokens after which a token counts half for the user, 0 for never;
    tree: with `config.hs`, the paths to the items; epoch_key: 64 bits from (seed, epoch);
    update_items: False freezes the items (inference).
    """

    config: TrainConfig
    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    order: NDArray[np.int64]
    alphas: NDArray[np.float32]
    sampling: Sampling
    tree: Tree | None
    recency: float
    epoch_key: int
    update_items: bool = True


TrainUsers = Callable[[Rows, Items, Pass], int]
