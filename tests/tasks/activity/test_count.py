"""Activity of any events: the same bits on any number of threads and in any company."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from surf2vec.sql.runner import connect
from surf2vec.tasks.activity.count import NAMES, count_activity, digest_events


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
    for threads, most_events in ((1, 500_000), (4, 500_000), (2, 1000), (2, 7)):
        with connect(500_000_000, tmp_path / "spill", threads) as con:
            some = events if most_events > 7 else events.filter(pl.col("user_ix") < 40)
            num_users = some["user_ix"].max() + 1
            found.append(np.concatenate(list(count_activity(con, some, num_users, most_events))))
            one = np.concatenate(list(count_activity(con, alone, 1)))
            np.testing.assert_array_equal(one[0], found[0][2900])
            np.testing.assert_array_equal(found[-1], found[0][: len(found[-1])])
    assert found[0].shape == (3000, len(NAMES))
    assert np.isnan(found[0][7]).all()
    assert np.isfinite(np.delete(found[0], 7, axis=0)).all(axis=1).mean() > 0.9


def test_digests_differ_where_events_do() -> None:
    """All histories of up to three events of two items at three times, of three users, two of them with one hash."""
    kinds = list(product((None, 0, 1), (0, 1)))
    histories = [list(one) for length in range(4) for one in product(kinds, repeat=length)] * 3
    rows = [(user, us, item) for user, events in enumerate(histories) for us, item in events]
    events = pl.DataFrame(rows, {"user_ix": pl.Int32, "us": pl.Int64, "item": pl.Int32}, orient="row")
    num_histories = len(histories) // 3
    users = np.repeat(np.array([5, 5, 6], np.uint64), num_histories)
    first, again, of_another = digest_events(events, np.array([3, 4], np.uint64), users).reshape(3, num_histories)
    np.testing.assert_array_equal(first, again)
    assert first[0] == of_another[0] == 0
    assert len({*first.tolist(), *of_another.tolist()}) == 2 * num_histories - 1
