"""The vectors of a generation: interest and trail side by side, so that one dot product of user and item ranks by both.

A user's parts are multiplied by weights: the trail by w, and the interest by 1 - w. The interest is read from the store. The
trail is summed up from the user's last pages, for any history.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus

Vectors = NDArray[np.float32]
TRAIL_WEIGHT = 0.7
"""The trail's weight unless the log chooses another."""


def weight_of(generation: Generation) -> float:
    """Return the trail's weight: as set, or as the log chose it after the training."""
    given = generation.config.trail_weight
    chosen: float = generation.manifest.get("choice", {}).get("trail_weight", TRAIL_WEIGHT)
    return chosen if given is None else given


def columns_of(generation: Generation) -> dict[str, list[int]]:
    """Return the columns of each part: the first, and the one after the last."""
    ends = np.cumsum([0, *generation.config.part_sizes.values()]).tolist()
    return {part: list(pair) for part, pair in zip(generation.config.part_sizes, pairwise(ends), strict=True)}


def bias_columns(generation: Generation) -> list[int]:
    """Return the columns in which all users have a constant, or zero, so that those of items are their popularity."""
    biases, columns = generation.config.num_biases, columns_of(generation)
    return [column for part, (_, end) in columns.items() for column in range(end - biases[part], end)]


@dataclass(frozen=True)
class TrailInputs:
    """What trails are summed up from. inputs float32[V, D2]; lags float32[W], nearest first; bias float32[D2]: without a page."""

    inputs: Vectors
    lags: Vectors
    bias: Vectors
    weight: float


def trail_inputs_of(generation: Generation) -> TrailInputs:
    """Return what trails of a generation are summed up from; it must have a trail."""
    from surf2vec.trainer.kernels.cpu import trail_vectors

    config, trail = generation.config, generation.trail
    assert trail is not None, f"generation {generation.generation} has no trail"
    nothing, zero = np.empty(0, np.int32), np.zeros(1, np.int64)
    bias = trail_vectors(trail, nothing, zero, zero, config.trail_window)[0]
    lags, alone = np.array(trail.lags.vectors[: config.trail_window, 0]), len(config.part_sizes) == 1
    return TrailInputs(trail.inputs.vectors, lags, bias, 1.0 if alone else weight_of(generation))


def join_parts(
    generation: Generation,
    interests: Vectors,
    tokens: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> Vectors:
    """Return the vectors float32[n, D] of users with these interests float32[n, D1] and histories tokens[starts[i] : ends[i]].

    The weight of a part that stands alone is 1.
    """
    parts, weight = generation.config.part_sizes, np.float32(weight_of(generation))
    if list(parts) == ["interest"]:
        return interests
    from surf2vec.trainer.kernels.cpu import trail_vectors  # numba takes half a second to import

    assert generation.trail is not None, f"generation {generation.generation} has no trail"
    trails = trail_vectors(generation.trail, tokens, starts, ends, generation.config.trail_window)
    return np.hstack([interests * (1 - weight), trails * weight]) if len(parts) > 1 else trails


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
        if list(self.generation.config.part_sizes) == ["interest"]:
            return interests
        histories = self.corpus.read(partition)
        ends = histories.offsets[1:] if self.generation.has_seen_held_out else histories.ends
        return join_parts(self.generation, interests, histories.tokens, histories.starts, ends)


def read_item_vectors(generation: Generation, start: int = 0, stop: int | None = None) -> Vectors:
    """Return the vectors of items `start` to `stop`, or all, float32[n, D]. Raises as Generation.read_items."""

    def read(part: str) -> Vectors:
        if part == "interest":
            return generation.read_items(start, stop)
        return generation.map_items(part).outputs.vectors[start:stop]

    return np.hstack([read(part) for part in generation.config.part_sizes])
