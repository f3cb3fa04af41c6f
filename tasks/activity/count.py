"""What the events of the window say of each user beside the pages: how much, how often and when (sql/marts/activity.sql).

A corpus keeps the numbers as they are, NaN where nothing is known. An export scales them (tasks/activity/scale.py).
"""

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from surf2vec.sql.runner import stream_rows
from surf2vec.trainer.store.tokens import Corpus, partition_name

US_PER_DAY = 86_400_000_000
SESSION_SECONDS = 1800
"""Gap from which a new session begins: half an hour, as in web analytics."""
NAMES = (
    *("events", "pages", "entropy", "new_pages", "late_new_pages", "last", "sessions", "days", "last_day", "last_week"),
    *("last_month", "span", "mean_gap", "median_gap", "last_gap", "session_gap", "last_session_gap", "session_seconds"),
    *("session_events", "last_session", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos"),
    *("last_hour_sin", "last_hour_cos", "last_weekday_sin", "last_weekday_cos"),
)


def count_activity(
    con: duckdb.DuckDBPyConnection, events: pl.DataFrame, activity: NDArray[np.float32], most_events: int = 500_000
) -> None:
    """Fill in the activity float32[N, A] of users 0 to N - 1, by NAMES; all NaN for a user without events.

    events: user_ix, us (null without a time), item; sorted by user and time. So many at once bound the memory, but for a user
    that has more.
    """
    activity[:] = np.nan
    users = events["user_ix"].to_numpy()
    start = 0
    while start < len(users):
        last = users[min(start + most_events, len(users)) - 1]
        stop = np.searchsorted(users, last, side="right")
        some = events.slice(start, stop - start)
        con.register("user_events", _compare_events(some).to_arrow())
        for rows in stream_rows(con, "marts/activity", {"session_seconds": SESSION_SECONDS}):
            columns = [rows[name].to_numpy(zero_copy_only=False) for name in NAMES]
            activity[rows["user_ix"].to_numpy()] = np.column_stack(columns)
        con.unregister("user_events")
        start = stop


def _compare_events(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with what the SQL step reads of the others of their user. Windows of DuckDB take ten times as long."""
    starts = np.flatnonzero(np.diff(events["user_ix"], prepend=-1))
    lengths = np.diff(starts, append=len(events))
    places, firsts, counts = (np.arange(len(events)), np.repeat(starts, lengths), np.repeat(lengths, lengths))
    is_later = pl.when(pl.Series(places > firsts))
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
