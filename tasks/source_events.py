"""Lines of a source as the events they make, sorted, and as lines that make none.

A distinct user or page is looked at once, by SQL, not once an event: pseudonyms, micro-partitions and the order of users
come from the first, items from the second. Arrow numbers strings several times as fast as a join finds them; what is left is
a sort of numbers. All lines given are in memory at once: `tasks/staging.py` gives as many as may be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from sql.runner import stream_rows
from tasks.numbering import Numbering, sort_by
from tasks.placement import hash_users, place_users
from tasks.source_pages import find_pages
from tasks.tombstones import FORGOTTEN, NOBODY, Tombstones
from tasks.urls import UrlRules

_US_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class SourceRules:
    """By what rules the lines of a source become events; `sql` has the parameters of the SQL steps.

    Lines of users who were `forgotten` make none.
    """

    source_number: int
    urls: UrlRules
    drops_assets: bool
    is_dated: bool
    sql: dict[str, Any]
    forgotten: Tombstones = NOBODY


@dataclass(frozen=True)
class Events:
    """Events by day and then in the order of events files, as the columns of EVENTS_SCHEMA, of which strings may be
    dictionaries; day int64[n] from 1970-01-01.

    refused (line, verdict): lines that make none.
    """

    rows: pa.Table
    day: NDArray[np.int64]
    refused: pa.Table

    def split_days(self) -> Iterator[tuple[int, pa.Table]]:
        """The events of each day that has some."""
        starts = np.flatnonzero(np.diff(self.day, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(self.day)]):
            yield int(self.day[start]), self.rows.slice(start, end - start)


def make_events(con: duckdb.DuckDBPyConnection, lines: pa.Table, rules: SourceRules) -> Events:
    """The events that some rows of int_timed_lines make; those without a date are of day 0."""
    user_ids, user = _number(lines["user_id"])
    page_keys, page = _number(lines["page_key"])
    users, rank_of_code = _look_up_users(con, user_ids, rules.sql)
    users = _leave_out(users, rules.forgotten)
    pages = find_pages(page_keys, rules.urls, rules.drops_assets)
    user_rank = rank_of_code[user]
    is_event = _has_none(users["verdict"])[user_rank] & _has_none(pages["verdict"])[page]
    is_event &= _has_none(pl.Series(lines["time_verdict"]))
    line, us = lines["line"].to_numpy(), lines["us"].fill_null(0).to_numpy()
    chosen = np.flatnonzero(is_event)
    day = us[chosen] // _US_A_DAY if rules.is_dated else np.zeros(len(chosen), dtype=np.int64)
    order = sort_by(line[chosen], us[chosen], user_rank[chosen], day)
    chosen = chosen[order]
    rank = user_rank[chosen]
    columns = {
        "micro_partition": users["micro_partition"].gather(rank).to_numpy(),
        "user_id": _take_later(users["user_id"], rank),
        "ts": us[chosen].view("datetime64[us]"),
        "source": np.full(len(chosen), rules.source_number, dtype=np.uint64),
        "line": line[chosen],
        "url": _take_later(pages["item"], page[chosen]),
    }
    rows = pa.table(columns)
    refused = np.flatnonzero(~is_event)
    of_user, of_page = users["verdict"].gather(user_rank[refused]), pages["verdict"].gather(page[refused])
    return Events(rows, day[order], _explain(lines.take(refused), of_user, of_page))


def _number(strings: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int32]]:
    """The distinct strings, the last of them null, and which of them each is, int32[n]: -1, the last, for null."""
    numbering = Numbering()
    codes = numbering.add(strings)
    return pa.concat_arrays([numbering.distinct(), pa.nulls(1, pa.large_string())]), codes


def _take_later(strings: pl.Series, places: NDArray) -> pa.DictionaryArray:
    """The strings at these places, not copied until they are written: most are there many times."""
    distinct = strings.to_arrow(compat_level=pl.CompatLevel.oldest())
    return pa.DictionaryArray.from_arrays(places.astype(np.int32, copy=False), distinct)


def _has_none(verdicts: pl.Series) -> NDArray[np.bool_]:
    return verdicts.is_null().to_numpy()


def _look_up_users(
    con: duckdb.DuckDBPyConnection, raw_ids: pa.Array, params: dict[str, Any]
) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """The users of distinct ids (user_id, micro_partition, verdict), in the order that events have; in which of them each id
    is, int64[num_ids].
    """
    raw_users = {"raw_id": raw_ids, "user_code": np.arange(len(raw_ids), dtype=np.int32)}
    con.register("int_raw_users", pa.table(raw_users))
    users = stream_rows(con, "intermediate/int_source_users", params).read_all().combine_chunks()
    con.unregister("int_raw_users")
    user_ids = users["user_id"].combine_chunks()
    micro_partition, order = place_users(user_ids, hash_users(user_ids), params["partitions"])
    rank_of_code = np.empty(len(raw_ids), dtype=np.int64)
    rank_of_code[users["user_code"].to_numpy()[order]] = np.arange(len(raw_ids))
    users = users.append_column("micro_partition", pa.array(micro_partition)).drop_columns("user_code")
    return pl.DataFrame(users)[order], rank_of_code


def _leave_out(users: pl.DataFrame, forgotten: Tombstones) -> pl.DataFrame:
    """Users with a verdict on those who were forgotten."""
    if not forgotten:
        return users
    is_gone = users["verdict"].is_null() & pl.Series(forgotten.is_forgotten(users["user_id"]))
    return users.with_columns(verdict=pl.when(is_gone).then(pl.lit(FORGOTTEN)).otherwise("verdict"))


def _explain(lines: pa.Table, of_user: pl.Series, of_page: pl.Series) -> pa.Table:
    """(line, verdict): why each of these lines makes no event: its user, no URL at all, its time, or its page."""
    no_url = pl.when(pl.Series(lines["page_key"]).is_null()).then(pl.lit("no URL"))
    verdict = pl.coalesce(of_user, no_url, pl.Series(lines["time_verdict"]), of_page)
    return pl.select(line=pl.Series(lines["line"]), verdict=verdict).to_arrow()
