"""The kernel of the trail, for CPUs: causal PV-DM without a vector of the user. README.md has the formulas.

An item is predicted by the weighted sum of the pages just before it. Nothing is trained for a user, whose trail is that sum
after the last page. Users are trained in the interest's streams of tiles, a target of each of TRAIL_TILE_USERS users a step.
"""

import math

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.kernels import cpu
from surf2vec.trainer.kernels.compiled_trail import sum_pages
from surf2vec.trainer.kernels.model import Noise
from surf2vec.trainer.kernels.signature import TRAIL_BIAS, TRAIL_TILE_USERS, Pass, backward_of
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import Rows, TrailItems


def train_trail(trail: TrailItems, work: Pass, tables: TrailTables, backward: float, epoch: int) -> int:
    """Train the targets of the users `work.order` whose turn it is in an epoch, in place. Returns the number of targets.

    backward: the share of targets that are predicted from the pages after them.
    """
    config, every = work.config, min(work.config.trail_every, work.config.epochs)
    rule = cpu.rule_of(work)._replace(
        is_softmax=True, is_dm=False, has_tree=False, has_trail=True, is_adagrad=True, window=config.trail_window,
        handicap=np.float32(math.log(config.negative_weight)), num_negatives=config.trail_negative,
        num_lanes=TRAIL_TILE_USERS, num_free=config.trail_size, l2_in_sums=np.float32(0), every=every,
        turn=epoch % every, backward=4.0 * backward_of(backward),
    )  # fmt: skip
    noise = Noise(*cpu.read_only(tables.thresholds, tables.aliases, tables.corrections, tables.l2s, tables.shares))
    nobody = Rows(trail.outputs.vectors[:0], trail.outputs.squares[:0])
    return cpu.train_tiles((nobody, trail.outputs, trail.inputs, trail.lags), noise, rule, work)


def trail_vectors(
    trail: TrailItems,
    tokens: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    window: int,
    skipped: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:
    """Return the trails of histories tokens[starts[i] : ends[i]], float32[n, D]. skipped int32[n]: pages to leave out."""
    vectors = np.empty((len(starts), trail.inputs.vectors.shape[1]), dtype=np.float32)
    skipped = np.full(len(starts), -1, dtype=np.int32) if skipped is None else skipped
    inputs, lags, *histories = cpu.read_only(trail.inputs.vectors, trail.lags.vectors, tokens, starts, ends, skipped)
    sum_pages(inputs, lags, window, np.float32(TRAIL_BIAS), *histories, vectors)
    return vectors
