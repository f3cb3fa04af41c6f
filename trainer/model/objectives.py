"""What a token is learned against: drawn items, their distribution, its correction, and the thinning of frequent items.

trainer/kernels/README.md has the losses, with their sources.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig

RANGE_32 = 2**32

SHARED_PART = 32
"""One item in so many is shared by all item blocks."""

MAX_SCORE = 6.0
"""With negative sampling a score beyond ± this makes no step, as in gensim: it is certain, or an outlier."""

RARE_COUNT = 100
"""Items up to this count are predicted backward as often as set, others more rarely: the pages before them say enough."""
L2_COUNT = 10
"""L2 is as set for an item with this count, and falls with the root of the count."""


@dataclass(frozen=True)
class Sampling:
    """Tables that turn a 64-bit draw into a negative item or into "keep this token".

    thresholds uint64[V], aliases int32[V]: Walker's alias table of the noise distribution, in units of 2**-32.
    keep uint64[V]: a token of the item stays when 32 random bits are below it.
    corrections float32[V]: sampled softmax subtracts them from an item's score; log q - t log n up to a constant; zeros
    for negative sampling.
    """

    thresholds: NDArray[np.uint64]
    aliases: NDArray[np.int32]
    keep: NDArray[np.uint64]
    corrections: NDArray[np.float32]


def make_sampling(counts: NDArray[np.int64], config: TrainConfig) -> Sampling:
    """Return the tables for items with these counts of training tokens, int64[V]. A count of 0 is taken as 1 for draws."""
    weights, corrections = _weigh(counts, config)
    keep = keep_thresholds(counts, int(counts.sum()), config.sample)
    return Sampling(*alias_table(weights), keep, corrections)


def _weigh(counts: NDArray[np.int64], config: TrainConfig) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return the items' weights for draws, float64[V], and the corrections, float32[V], both up to a constant."""
    known = np.maximum(counts, 1).astype(np.float64)
    is_softmax = config.objective == "sampled_softmax"
    exponent = config.ns_exponent - config.discount + config.popularity if is_softmax else 0.0
    return known**config.ns_exponent, (exponent * np.log(known)).astype(np.float32)


def shared_items(num_items: int) -> int:
    """Return the maximal number of items, the most frequent, that all item blocks share."""
    return num_items // SHARED_PART


def block_sampling(
    counts: NDArray[np.int64], config: TrainConfig, rows: NDArray[np.uint32], num_shared: int, num_blocks: int
) -> Sampling:
    """Return the tables of one of B blocks, with the items `rows`; all blocks share the first `num_shared`. counts int64[V]:
    of all items.

    Negatives come from the block. A shared item is drawn with 1 / B of its weight, so that over all blocks every item is drawn
    as often as without blocks. The shared items make scores of different blocks comparable, which a softmax of a block alone
    would not. The row after the last stands for items of other blocks: none of their tokens is kept.
    """
    own = counts[rows]
    weights, corrections = _weigh(own, config)
    weights[:num_shared] /= num_blocks
    keep = np.append(keep_thresholds(own, int(counts.sum()), config.sample), np.uint64(0))
    return Sampling(*alias_table(weights), keep, corrections)


def alias_table(weights: NDArray[np.float64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return Walker's alias table of `weights` float64[V]: thresholds uint64[V] in units of 2**-32, and aliases int32[V].

    Drawing i uniformly and taking i when 32 random bits are below thresholds[i], else aliases[i], gives each item with
    probability weight / sum, to 2**-32. Built without a loop: heavy items (above the mean) fill light ones in order,
    found by the running sums of deficits and surpluses; a heavy item that gave too much is filled by the next
    (the sweep of Hübschle-Schneider and Sanders, ESA 2019).
    """
    num_items = len(weights)
    scaled = weights * (num_items / weights.sum())
    is_light = scaled < 1
    is_light[scaled.argmax()] = False  # by rounding, equal weights may all come out just below their mean
    light, heavy = np.flatnonzero(is_light), np.flatnonzero(~is_light)
    thresholds = scaled.copy()
    aliases = np.arange(num_items, dtype=np.int32)
    lacking = np.cumsum(1 - scaled[light])
    spare = np.cumsum(scaled[heavy] - 1)
    before = np.concatenate(([0.0], lacking[:-1])) if len(light) else lacking
    servers = np.minimum(np.searchsorted(spare, before, side="right"), len(heavy) - 1)
    aliases[light] = heavy[servers]
    last = np.searchsorted(lacking, spare, side="left")
    overdrawn = np.append(lacking, 0.0)[last] - spare
    is_overdrawn = (last < len(light)) & (np.arange(len(heavy)) < len(heavy) - 1)
    thresholds[heavy] = np.where(is_overdrawn, 1 - overdrawn, 1.0)
    aliases[heavy[:-1]] = np.where(is_overdrawn[:-1], heavy[1:], heavy[:-1])
    return (np.clip(thresholds, 0, 1) * RANGE_32).astype(np.uint64), aliases


def keep_thresholds(counts: NDArray[np.int64], num_tokens: int, sample: float) -> NDArray[np.uint64]:
    """Return for each item the 32-bit threshold below which a token is kept, uint64[V]; 2**32 keeps all.

    `num_tokens`: of all items; `counts` may be of some. As in gensim and word2vec, an item with share f of all tokens is
    kept with probability sqrt(sample / f) + sample / f.
    """
    if sample == 0 or num_tokens == 0:
        return np.full(len(counts), RANGE_32, dtype=np.uint64)
    share = np.maximum(counts, 1) / num_tokens
    kept = np.minimum(np.sqrt(sample / share) + sample / share, 1.0)
    return (kept * RANGE_32).astype(np.uint64)


@dataclass(frozen=True)
class TrailTables:
    """Tables of the trail. thresholds uint64[V], aliases int32[V]: of drawn items; corrections float32[V]: taken from scores,
    as in Sampling; l2s float32[V]: the L2 of each item; shares float32[V]: how much of the share of backward targets it has.
    """

    thresholds: NDArray[np.uint64]
    aliases: NDArray[np.int32]
    corrections: NDArray[np.float32]
    l2s: NDArray[np.float32]
    shares: NDArray[np.float32]


def make_trail_tables(counts: NDArray[np.int64], config: TrainConfig) -> TrailTables:
    """Return the tables for items with these counts of training tokens, int64[V]. Items without tokens are not drawn."""
    known = np.maximum(counts, 1).astype(np.float64)
    weights = np.where(counts > 0, known, 0.0) ** 0.5 if counts.any() else known
    corrections = (0.5 - config.trail_discount + config.popularity) * np.log(known)
    l2s = config.trail_l2 * np.sqrt(L2_COUNT / known)
    shares = np.minimum(1, RARE_COUNT / known)
    return TrailTables(*alias_table(weights), *(table.astype(np.float32) for table in (corrections, l2s, shares)))
