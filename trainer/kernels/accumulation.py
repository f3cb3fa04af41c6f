"""Gradient accumulation: items stand still while some users are trained, then each moves once, by a sparse product.

With SGD the sum keeps the learning rate of single steps, which is the linear rule for a mean over n (Goyal et al., 2017).
With Adagrad the sum enters the row's squares as one gradient; README.md derives why alpha stays as it is.
"""

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.kernels.model import Ledger
from surf2vec.trainer.model.rows import EPSILON, Rows


def make_ledger(lengths: NDArray[np.int64], num_negatives: int, num_dims: int) -> Ledger:
    """Return an empty ledger for users with so many tokens each, int64[M]."""
    ends = np.cumsum(lengths)
    num_predictions = int(ends[-1]) if len(ends) else 0
    rows = np.full((num_predictions, 1 + num_negatives), -1, dtype=np.int32)
    pulls = np.empty(rows.shape, dtype=np.float32)
    return Ledger(ends - lengths, np.empty((num_predictions, num_dims), dtype=np.float32), rows, pulls)


def move_items(outputs: Rows, ledger: Ledger, config: TrainConfig, alpha: np.float32) -> None:
    """Move each row in the ledger by the sum of its gradients: pull * hidden, less L2 for each prediction of its own.

    Raises ConfigError where scipy is not installed.
    """
    try:
        from scipy.sparse import csr_array  # a bare machine for training without accumulation has no scipy
    except ModuleNotFoundError:
        message = (
            "train.accumulate above 1 needs scipy, which is not installed: install it, or set train.accumulate to 1"
        )
        raise ConfigError(message) from None
    is_kept = ledger.rows[:, 0] >= 0
    hiddens, pulls = ledger.hiddens[is_kept], ledger.pulls[is_kept]
    rows, places = np.unique(ledger.rows[is_kept], return_inverse=True)
    places = places.reshape(pulls.shape)
    predictions = np.repeat(np.arange(len(pulls)), pulls.shape[1])
    sums = csr_array((pulls.ravel(), (places.ravel(), predictions)), shape=(len(rows), len(pulls))) @ hiddens
    own_places, nums = np.unique(places[:, 0], return_counts=True)
    num_free = config.num_free  # L2 is not for the bias
    l2s = np.float32(config.item_l2) * nums.astype(np.float32)[:, None]
    sums[own_places, :num_free] -= l2s * outputs.vectors[rows[own_places], :num_free]
    rates = np.full(len(rows), alpha, dtype=np.float32)
    if config.optimizer == "adagrad":
        outputs.squares[rows] += np.einsum("rd,rd->r", sums, sums) / np.float32(sums.shape[1])
        rates /= np.sqrt(outputs.squares[rows] + np.float32(EPSILON))
    sums *= rates[:, None]
    outputs.vectors[rows] += sums
