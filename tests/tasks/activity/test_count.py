"""Activity of any events: the same bits on any number of threads and in any company."""

from pathlib import Path

import numpy as np
import polars as pl

from surf2vec.sql.runner import connect
from surf2vec.tasks.activity.count import NAMES, count_activity


def test_the_same_bits_on_any_threads_and_beside_any_users(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    users = np.sort(rng.integers(0, 3000, 60_000))
    users = users[users != 7]
    events = pl.DataFrame(
        {"user_ix": users, "us": rng.integers(0, 10**14, len(users)), "item": rng.integers(0, 50, len(users))}
    )
    events = events.sort("user_ix", "us")
    alone = events.filter(pl.col("user_ix") == 2900).with_columns(user_ix=pl.lit(0))
    found = []
    for threads in (1, 4):
        with connect(500_000_000, tmp_path / "spill", threads) as con:
            found.append(count_activity(con, events, 3000))
            np.testing.assert_array_equal(count_activity(con, alone, 1)[0], found[-1][2900])
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].shape == (3000, len(NAMES))
    assert np.isnan(found[0][7]).all()
    assert np.isfinite(np.delete(found[0], 7, axis=0)).all(axis=1).mean() > 0.9
