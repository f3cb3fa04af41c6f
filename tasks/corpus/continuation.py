"""How the rows of a night follow from those of the night it builds on, its base: users stay where they are.

A user of the base keeps the row also without events in the window, until the newest event is too old; then the row is a hole,
which nobody takes, so that every other row still means who it meant. New users come after all rows of the base. In a full
night holes go, and everybody moves: first who has events, then who stays without.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tasks.corpus.cleaning import UNDATED, Tokens

USERS_SCHEMA = pa.schema([("user_id", pa.string()), ("hash", pa.uint64()), ("last_day", pa.int32())])
"""last_day: of the newest event ever seen, in days since 1970, or UNDATED, which is never too old. A hole is null, 0, 0."""


@dataclass(frozen=True)
class Continued:
    """users: a row each, as USERS_SCHEMA; source int64[n]: the row that each has in the window, -1 for none."""

    users: pa.Table
    source: NDArray[np.int64]


def continue_rows(base: pa.Table, window: pa.Table, oldest_day: int) -> Continued:
    """The rows of a micro-partition: `base` and `window` are its users then and now, both as USERS_SCHEMA.

    Users of the base who have no events now and whose newest event was before `oldest_day` leave.
    """
    before, now = pl.DataFrame(base), pl.DataFrame(window).with_row_index("source")
    rows = before.join(now, on="user_id", how="left", maintain_order="left", suffix="_now")
    is_here = pl.col("source").is_not_null()
    stays = is_here | (pl.col("last_day") >= oldest_day) | (pl.col("last_day") == UNDATED)
    stays &= pl.col("user_id").is_not_null()
    rows = rows.select(
        user_id=pl.when(stays).then("user_id"),
        hash=pl.when(stays).then("hash").otherwise(0),
        last_day=pl.when(is_here)
        .then(pl.max_horizontal("last_day", "last_day_now"))
        .when(stays)
        .then("last_day")
        .otherwise(0),
        source=pl.col("source").cast(pl.Int64).fill_null(-1),
    )
    new = now.join(before, on="user_id", how="anti", maintain_order="left")
    rows = pl.concat([rows, new.select("user_id", "hash", "last_day", pl.col("source").cast(pl.Int64))])
    users = rows.drop("source").to_arrow(compat_level=pl.CompatLevel.oldest()).cast(USERS_SCHEMA)
    return Continued(users, rows["source"].to_numpy())


def find_changed(base: Tokens, now: Tokens) -> NDArray[np.bool_]:
    """The rows to train tonight, bool[n]: those that have tokens, and other ones than in the base, which has rows 0 to n0 only.

    Whoever lost all tokens keeps the vector there was.
    """
    num_before, lengths = len(base.offsets) - 1, np.diff(now.offsets)
    is_changed = lengths > 0
    same = np.flatnonzero(lengths[:num_before] == np.diff(base.offsets))
    before, after = base.take(same), now.take(same)
    unequal = np.concatenate(([0], np.cumsum(before.tokens != after.tokens)))
    is_changed[same] &= unequal[before.offsets[1:]] > unequal[before.offsets[:-1]]
    return is_changed


def find_known(base: Tokens, rows: NDArray[np.int64], items: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which of these items int32[k] the base has among the tokens of their row, bool[k]; it may have fewer rows."""
    before = base.take(np.where(rows < len(base.offsets) - 1, rows, -1))
    is_it = before.tokens == np.repeat(items, np.diff(before.offsets))
    known_before = np.concatenate(([0], np.cumsum(is_it)))
    return known_before[before.offsets[1:]] > known_before[before.offsets[:-1]]
