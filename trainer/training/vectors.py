"""The vectors of a generation: interest and path side by side, so that one dot product of user and item ranks by both.

A user's parts are multiplied by weights: the path by w, and the interest by 1 - w. The interest is read from the store. The
path is summed up from the user's last pages, for any history.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.config import PATH_BIASES
from trainer.store.generation import Generation
from trainer.store.tokens import Corpus

Vectors = NDArray[np.float32]


PATH_WEIGHT = 0.6
"""The path's weight unless the log chooses another."""


def weight_of(generation: Generation) -> float:
    """Return the path's weight: as set, or as the log chose it after the training."""
    given = generation.config.path_weight
    chosen: float = generation.manifest.get("choice", {}).get("path_weight", PATH_WEIGHT)
    return chosen if given is None else given


def columns_of(generation: Generation) -> dict[str, list[int]]:
    """Return the columns of each part: the first, and the one after the last."""
    config = generation.config
    columns = {"interest": [0, config.interest_size], "path": [config.interest_size, config.vector_size]}
    return {part: [first, end] for part, (first, end) in columns.items() if first < end}


def bias_columns(generation: Generation) -> list[int]:
    """Return the columns in which all users have a constant, or zero, so that those of items are their popularity."""
    config = generation.config
    interest = [config.interest_size - 1] if config.interest_size and config.bias else []
    return interest + (list(range(config.vector_size - PATH_BIASES, config.vector_size)) if config.path_size else [])


@dataclass(frozen=True)
class PathInputs:
    """What paths are summed up from. inputs float32[V, D2]; lags float32[W], nearest first; bias float32[D2]: without a page."""

    inputs: Vectors
    lags: Vectors
    bias: Vectors
    weight: float


def path_inputs_of(generation: Generation) -> PathInputs:
    """Return what paths of a generation are summed up from; it must have a path."""
    from trainer.kernels.path import path_vectors

    config, path = generation.config, generation.path
    assert path is not None
    nothing, zero = np.empty(0, np.int32), np.zeros(1, np.int64)
    bias = path_vectors(path, nothing, zero, zero, config.path_window)[0]
    weight = weight_of(generation) if len(columns_of(generation)) > 1 else 1.0
    return PathInputs(path.inputs.vectors, np.array(path.lags.vectors[: config.path_window, 0]), bias, weight)


def join_parts(
    generation: Generation, interests: Vectors, tokens: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> Vectors:  # fmt: skip
    """Return the vectors float32[n, D] of users with these interests float32[n, D1] and histories tokens[starts[i] : ends[i]]."""
    config, path = generation.config, generation.path
    if path is None:
        return interests
    from trainer.kernels.path import path_vectors  # numba takes half a second to import

    paths = path_vectors(path, tokens, starts, ends, config.path_window)
    if config.parts == "path":
        return paths
    weight = np.float32(weight_of(generation))
    return np.hstack((interests * (1 - weight), paths * weight))


@dataclass(frozen=True)
class BothParts:
    """Reads the vectors of a generation; corpus: of all its users. Users who were held out have paths up to the held-out event,
    until they are fitted to all their events.
    """

    generation: Generation
    corpus: Corpus

    def read_users(self, partition: int, /) -> Vectors:
        """Return the vectors of a micro-partition's users, float32[n, D]. Raises DamageError when a file was altered."""
        interests = self.generation.read_users(partition)
        if self.generation.path is None:
            return interests
        histories = self.corpus.read(partition)
        ends = histories.offsets[1:] if self.generation.has_seen_held_out else histories.ends
        return join_parts(self.generation, interests, histories.tokens, histories.starts, ends)


def read_item_vectors(generation: Generation, start: int = 0, stop: int | None = None) -> Vectors:
    """Return the vectors of items `start` to `stop`, or all, float32[n, D]. Raises as Generation.read_items."""
    config, path = generation.config, generation.path
    if path is None:
        return generation.read_items(start, stop)
    outputs = path.outputs.vectors[start:stop]
    return np.array(outputs) if config.parts == "path" else np.hstack((generation.read_items(start, stop), outputs))
