"""What the events of the window say of each user beside the pages: how much, how often and when (sql/marts/activity.sql).

A corpus keeps the numbers as they are, NaN where nothing is known. An export scales them (tasks/activity/scale.py).
"""

from collections.abc import Iterator

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from surf2vec.sql.runner import stream_rows
from surf2vec.trainer.draws import GAMMA, MIX_1, mix_array
from surf2vec.trainer.store.tokens import Corpus, partition_name

US_PER_DAY = 86_400_000_000
CIRCLES = {"hour": (US_PER_DAY, 0), "weekday": (7 * US_PER_DAY, 3 * US_PER_DAY)}
"""Lengths, and how far 1970 was in them: it began at midnight and on a Thursday."""
SESSION_SECONDS = 1800
"""Gap from which a new session begins: half an hour, as in web analytics."""
NAMES = (
    *("events", "pages", "entropy", "new_pages", "late_new_pages", "last", "sessions", "days", "last_day", "last_week"),
    *("last_month", "span", "mean_gap", "median_gap", "last_gap", "session_gap", "last_session_gap", "session_seconds"),
    *("session_events", "last_session", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos"),
    *("last_hour_sin", "last_hour_cos", "last_weekday_sin", "last_weekday_cos"),
)


def count_activity(
    con: duckdb.DuckDBPyConnection, events: pl.DataFrame, num_users: int, most_events: int = 500_000
) -> Iterator[NDArray[np.float32]]:
    """Yield the activity of users 0 to num_users - 1 by NAMES, float32[n, A] of some after the other; NaN without events.

    events: user_ix, us (null without a time), item; sorted by user and time; the columns of `find_circles` where it has them.
    So many at once bound the memory, but for a user that has more.
    """
    users, first, start = events["user_ix"].to_numpy(), 0, 0
    while start < len(users):
        end = int(users[min(start + most_events, len(users)) - 1]) + 1
        stop = int(np.searchsorted(users, end))
        activity = np.full((end - first, len(NAMES)), np.nan, np.float32)
        con.register("user_events", _compare_events(events.slice(start, stop - start)).to_arrow())
        for rows in stream_rows(con, "marts/activity", {"session_seconds": SESSION_SECONDS}):
            columns = [rows[name].to_numpy(zero_copy_only=False) for name in NAMES]
            activity[rows["user_ix"].to_numpy() - first] = np.column_stack(columns)
        con.unregister("user_events")
        yield activity
        first, start = end, stop
    yield np.full((num_users - first, len(NAMES)), np.nan, np.float32)


def digest_events(events: pl.DataFrame, items: NDArray[np.uint64], users: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a digest of each user's events, uint64[N], 0 without events: a user with the same one has the same activity.

    events: as for `count_activity`; items, users: the hash of each.
    """
    user, digests = events["user_ix"].to_numpy(), np.zeros(len(users), np.uint64)
    starts = np.flatnonzero(np.diff(user, prepend=-1))
    if not len(starts):
        return digests
    places = np.arange(len(user)) - np.repeat(starts, np.diff(starts, append=len(user)))
    us = events["us"].fill_null(np.iinfo(np.int64).min).to_numpy().astype(np.uint64)
    keys = us * np.uint64(GAMMA) + places.astype(np.uint64) * np.uint64(MIX_1) + items[events["item"].to_numpy()]
    digests[user[starts]] = np.add.reduceat(mix_array(keys), starts)
    return mix_array(digests + users) * (digests != 0)


def find_circles(events: pl.DataFrame) -> pl.DataFrame:
    """Return hour and weekday in UTC as points on circles, in millionths, int32: their sums have the same bits in any order."""
    angles = {name: (pl.col("us") + far) % length * (2 * np.pi / length) for name, (length, far) in CIRCLES.items()}
    points = {f"{name}_sin": angle.sin() for name, angle in angles.items()}
    points |= {f"{name}_cos": angle.cos() for name, angle in angles.items()}
    return events.select((1e6 * point).round().cast(pl.Int32).alias(name) for name, point in points.items())


def _compare_events(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with what the SQL step reads of the others of their user. Windows of DuckDB take ten times as long."""
    starts = np.flatnonzero(np.diff(events["user_ix"], prepend=-1))
    lengths = np.diff(starts, append=len(events))
    places, firsts, counts = (np.arange(len(events)), np.repeat(starts, lengths), np.repeat(lengths, lengths))
    is_later = pl.when(pl.Series(places > firsts))
    if "hour_sin" not in events.columns:
        events = events.hstack(find_circles(events))
    return events.with_columns(
        place=pl.Series(places),
        is_late=pl.Series(places - firsts >= counts // 2),
        gap=is_later.then(pl.col("us").diff()),
        day_gap=is_later.then((pl.col("us") // US_PER_DAY).diff()),
        age=events["us"].gather(firsts + counts - 1) - events["us"],
    )


def read_activity(corpus: Corpus, partition: int) -> NDArray[np.float32]:
    """Return the activity of a micro-partition's users, float32[n, A]. Raises DamageError when the file was altered."""
    return np.load(corpus.path(f"{partition_name(partition)}.activity.npy"), allow_pickle=False)


def read_digests(corpus: Corpus, partition: int) -> NDArray[np.uint64]:
    """Return the digests of the events that a micro-partition's activity was counted from; zeros where the corpus has none, as
    after `forget` and `restore`. Raises DamageError when the file was altered.
    """
    name = f"{partition_name(partition)}.digests.npy"
    if name not in corpus.manifest["files"]:
        return np.zeros(corpus.users[partition], np.uint64)
    return np.load(corpus.path(name), allow_pickle=False)
