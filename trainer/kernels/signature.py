"""The one signature of all kernels: `train_users(users, items, work) -> int`.

A kernel trains the users of `work.order` once, each over all its tokens, and changes both tables in place. Items move at once,
or after every `accumulate` users. It returns how many tokens subsampling kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model.objectives import Sampling
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.model.trees import Tree

STREAM_USERS = 512
"""Users of a stream, whose tiles share negatives: many, as lanes run empty at its end; few, so that all threads have some."""
TRAIL_TILE_USERS = INFERENCE_LANES = 32
TRAIL_RATE = 0.6
"""The trail's share of the learning rate."""
L2_WINDOW = 5
"""A page is summed up once for each place of the window. Its L2 is as set with this window, and divided among more places."""
NEWEST_SHARE = round(0.3 * 2**32)
"""Of 2**32: the share of the trail's targets that are predicted from the nearest page alone."""
LEAST_LAG, LAG_RATE = 0.01, 0.3
"""The least weight of a lag, and the share of the learning rate by which the weights move."""


def most_streams(num_users: int) -> int:
    """Return the streams of a pass over so many users; there are fewer where one user has the tokens of several streams."""
    return max(1, num_users // STREAM_USERS)


def backward_of(share: float) -> int:
    """Return the share of the trail's targets that are predicted backward, of 2**30, so that all kernels have the same bits."""
    return round(share * 2**30)


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

    @property
    def streams(self) -> NDArray[np.int64]:
        """The starts of the streams in the order and its end, int64[S + 1]: of about as many tokens each, so that threads
        end together. They are a function of the pass alone.
        """
        before = np.cumsum((self.ends - self.starts)[self.order])
        num = most_streams(len(self.order))
        starts = np.searchsorted(before, before[-1:] * np.arange(1, num) / num, side="right")
        return np.unique([0, *starts, len(self.order)])


TrainUsers = Callable[[Rows, Items, Pass], int]
