"""The vectors of a generation: interest and trail side by side, so that one dot product of user and item ranks by both.

A user's parts are multiplied by weights: the trail by w, and the interest by 1 - w. The interest is read from the store. The
trail is summed up from the user's last pages, for any history.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TRAIL_BIASES
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus

Vectors = NDArray[np.float32]


TRAIL_WEIGHT = 0.6
"""The trail's weight unless the log chooses another."""


def weight_of(generation: Generation) -> float:
    """Return the trail's weight: as set, or as the log chose it after the training."""
    given = generation.config.trail_weight
    chosen: float = generation.manifest.get("choice", {}).get("trail_weight", TRAIL_WEIGHT)
    return chosen if given is None else given


def columns_of(generation: Generation) -> dict[str, list[int]]:
    """Return the columns of each part: the first, and the one after the last."""
    config = generation.config
    columns = {"interest": [0, config.interest_size], "trail": [config.interest_size, config.vector_size]}
    return {part: [first, end] for part, (first, end) in columns.items() if first < end}


def bias_columns(generation: Generation) -> list[int]:
    """Return the columns in which all users have a constant, or zero, so that those of items are their popularity."""
    config = generation.config
    interest = [config.interest_size - 1] if config.interest_size and config.bias else []
    return interest + (list(range(config.vector_size - TRAIL_BIASES, config.vector_size)) if config.trail_size else [])


@dataclass(frozen=True)
class TrailInputs:
    """What trails are summed up from. inputs float32[V, D2]; lags float32[W], nearest first; bias float32[D2]: without a page."""

    inputs: Vectors
    lags: Vectors
    bias: Vectors
    weight: float


def trail_inputs_of(generation: Generation) -> TrailInputs:
    """Return what trails of a generation are summed up from; it must have a trail."""
    from surf2vec.trainer.kernels.trail import trail_vectors

    config, trail = generation.config, generation.trail
    assert trail is not None
    nothing, zero = np.empty(0, np.int32), np.zeros(1, np.int64)
    bias = trail_vectors(trail, nothing, zero, zero, config.trail_window)[0]
    weight = weight_of(generation) if len(columns_of(generation)) > 1 else 1.0
    return TrailInputs(trail.inputs.vectors, np.array(trail.lags.vectors[: config.trail_window, 0]), bias, weight)


def join_parts(
    generation: Generation, interests: Vectors, tokens: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> Vectors:  # fmt: skip
    """Return the vectors float32[n, D] of users with these interests float32[n, D1] and histories tokens[starts[i] : ends[i]]."""
    config, trail = generation.config, generation.trail
    if trail is None:
        return interests
    from surf2vec.trainer.kernels.trail import trail_vectors  # numba takes half a second to import

    trails = trail_vectors(trail, tokens, starts, ends, config.trail_window)
    if config.parts == "trail":
        return trails
    weight = np.float32(weight_of(generation))
    return np.hstack((interests * (1 - weight), trails * weight))


@dataclass(frozen=True)
class BothParts:
    """Reads the vectors of a generation; corpus: of all its users. Users who were held out have trails up to the held-out event,
    until they are fitted to all their events.
    """

    generation: Generation
    corpus: Corpus

    def read_users(self, partition: int, /) -> Vectors:
        """Return the vectors of a micro-partition's users, float32[n, D]. Raises DamageError when a file was altered."""
        interests = self.generation.read_users(partition)
        if self.generation.trail is None:
            return interests
        histories = self.corpus.read(partition)
        ends = histories.offsets[1:] if self.generation.has_seen_held_out else histories.ends
        return join_parts(self.generation, interests, histories.tokens, histories.starts, ends)


def read_item_vectors(generation: Generation, start: int = 0, stop: int | None = None) -> Vectors:
    """Return the vectors of items `start` to `stop`, or all, float32[n, D]. Raises as Generation.read_items."""
    config, trail = generation.config, generation.trail
    if trail is None:
        return generation.read_items(start, stop)
    outputs = trail.outputs.vectors[start:stop]
    return np.array(outputs) if config.parts == "trail" else np.hstack((generation.read_items(start, stop), outputs))
