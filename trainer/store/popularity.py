"""Moves the items of a generation by how popular they are: a choice that is made after the training."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TRAIL_BIAS
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.manifests import next_generation
from surf2vec.trainer.store.writer import Writer


def commit_popularity(
    store_dir: Path, generation: Generation, popularity: float, counts: NDArray[np.int64], choice: dict[str, Any]
) -> Generation:
    """Commit a generation whose scores are higher by (popularity - that of its settings) * log(count), with the choice.

    counts int64[V]: of the training's tokens; 0 is taken as 1. All users have the same bias as their last coordinate of a part,
    so only the last coordinate of the items' outputs moves. The settings of the new generation have the popularity, from which
    inference and the next night correct scores. The caller holds the store's lock. Raises ResourceError when the disk is full.
    """
    manifest, config = generation.manifest, generation.config
    writer = Writer(store_dir, next_generation(store_dir), manifest)
    if shift := popularity - config.popularity:
        logs, biases = np.log(np.maximum(counts, 1)), {"interest": config.bias, "trail": TRAIL_BIAS}
        for part, block in [key for key in writer.entries if key[0] in config.part_sizes]:
            image = writer.read(part, block)
            rows = image.arrays.get("rows", slice(None))
            image.arrays["outputs"][:, -1] += (shift / biases[part] * logs[rows]).astype(np.float32)
            writer.write(part, block, image)
    return writer.commit(manifest | {"choice": choice, "config": manifest["config"] | {"popularity": popularity}})
