"""The one signature of all kernels: `train_users(user_vectors float32[N, D], item_vectors float32[V, D], work) -> int`.

A kernel trains the users of `work.order` once, one after the other, each over all its tokens, and changes both
tables in place. It answers how many tokens subsampling kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.objectives import Sampling


@dataclass(frozen=True)
class Pass:
    """What one call of a kernel does.

    tokens int32[T]; starts, ends int64[N]: user i's tokens are tokens[starts[i]:ends[i]]; hashes uint64[N];
    order int64[M]: the rows to train, in this order; alphas float32[M]: their learning rates;
    epoch_key: 64 bits from (seed, epoch); negative: K; update_items: False freezes the item table (inference).
    """

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    order: NDArray[np.int64]
    alphas: NDArray[np.float32]
    sampling: Sampling
    epoch_key: int
    negative: int
    threads: int
    update_items: bool = True


TrainUsers = Callable[[NDArray[np.float32], NDArray[np.float32], Pass], int]
