"""Scales activity (tasks/activity/count.py) to bounded numbers, by quantiles that are fixed with the space.

A number becomes its rank among the users of the first release of the space: from -RANGE / 2 to RANGE / 2, 0 for the median.
Beyond the quantiles it extends to ±RANGE: of later nights, `last` is greater than all quantiles. Where nothing is known it is 0.
"""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from surf2vec.tasks.activity.count import NAMES, read_activity
from surf2vec.trainer.store.tokens import Corpus, held_out_keys

RANGE = 0.5
"""About the greatest number of the other parts: with int8 they keep their bits."""
NUM_QUANTILES = 32  # the outermost are of a 64th of the users: nobody's own number, unless there are few
MAX_USERS = 200_000


def settle_activity(corpus: Corpus, before: dict[str, Any]) -> dict[str, Any]:
    """Return the entry `activity` of a release's manifest: names, and quantiles of each; none where nothing is known.

    before: the manifest of a release of the same space, whose entry is kept, or {}. Otherwise the quantiles are those of at most
    about MAX_USERS users of the corpus, drawn by their hashes. Raises DamageError when a file of the corpus was altered.
    """
    if before.get("activity", {}).get("names") == list(NAMES):
        return dict(before["activity"])
    sample = []
    for partition in range(corpus.num_partitions):
        users = corpus.read_users(partition)
        draws = held_out_keys(users["hash"].to_numpy()) / 2.0**64 * corpus.num_users
        is_drawn = pc.is_valid(users["user_id"]).to_numpy() & (draws < MAX_USERS)
        sample.append(read_activity(corpus, partition)[is_drawn])
    levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    columns = (column[np.isfinite(column)].astype(np.float64) for column in np.concatenate(sample).T)
    return {
        "names": list(NAMES),
        "quantiles": [np.quantile(column, levels).tolist() if len(column) else [] for column in columns],
    }


def describe_activity(about: dict[str, Any]) -> dict[str, list[float]]:
    """Return how many events, pages, sessions and days half of the users have at least, and how many a ninth."""
    found = dict(zip(about["names"], about["quantiles"], strict=True))
    counted = ((name, found[name]) for name in ("events", "pages", "sessions", "days"))
    return {name: np.exp([values[16], values[28]]).round().tolist() for name, values in counted if values}


def scale_activity(activity: NDArray[np.float32], quantiles: list[list[float]]) -> NDArray[np.float32]:
    """Return activity float32[n, A] as numbers from -RANGE to RANGE, float32[n, A]. quantiles: of each column, ascending."""
    scaled = np.zeros(activity.shape, np.float32)
    for number, found in enumerate(quantiles):
        if not found:
            continue
        values, firsts, counts = np.unique(found, return_index=True, return_counts=True)
        ranks = (firsts + counts / 2) / len(found) - 0.5  # the mean rank of equal quantiles
        column = activity[:, number].astype(np.float64)
        beyond = column - np.clip(column, values[0], values[-1])
        further = beyond / (np.abs(beyond) + max(values[-1] - values[0], 1)) / 2
        scaled[:, number] = np.nan_to_num(RANGE * (np.interp(column, values, ranks) + further))
    return scaled
