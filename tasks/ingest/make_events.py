"""Lines of a source as the events they make, sorted, and as lines that make none.

A distinct user or page is looked at once, not once an event: items come from `tasks/ingest/make_items.py`, micro-partitions
and the order of users from `tasks/users/placement.py`. What is left is a sort of numbers. All lines given are in memory at
once: `tasks/ingest/staging.py` gives as many as may be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sql.runner import stream_rows
from tasks.events.numbering import number_strings, sort_by
from tasks.ingest.make_items import find_pages
from tasks.ingest.urls import TOKEN_PATTERN, UrlRules
from tasks.users.placement import place_users
from tasks.users.pseudonyms import pseudonym
from tasks.users.tombstones import FORGOTTEN, NOBODY, Tombstones

MAX_USER_BYTES = 1024
_US_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class SourceRules:
    """By what rules the lines of a source become events.

    user_key: of pseudonyms, if there are any. Lines of users who were `forgotten` make no events.
    """

    source_number: int
    urls: UrlRules
    drops_assets: bool
    is_dated: bool
    partitions: int
    user_key: bytes | None = field(default=None, repr=False)
    forgotten: Tombstones = NOBODY


@dataclass(frozen=True)
class Events:
    """Events by day and then in the order of events files, as the columns of EVENTS_SCHEMA, of which strings may be
    dictionaries; day int64[n] from 1970-01-01. refused (line, verdict): lines that make none.
    """

    rows: pa.Table
    day: NDArray[np.int64]
    refused: pa.Table

    def split_days(self) -> Iterator[tuple[int, pa.Table]]:
        """The events of each day that has some."""
        starts = np.flatnonzero(np.diff(self.day, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(self.day)]):
            yield int(self.day[start]), self.rows.slice(start, end - start)


def make_events(con: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, rules: SourceRules) -> Events:
    """The events that some rows of int_timed_lines make; those without a date are of day 0."""
    lines = rows.read_all()
    line, us = lines["line"].to_numpy(), lines["us"].fill_null(0).to_numpy()
    user, raw_ids = number_strings(lines["user_id"])
    page, page_keys = number_strings(lines["page_key"])
    time, time_verdicts = number_strings(lines["time_verdict"])
    del lines  # their strings
    users, rank_of_user = _look_up_users(con, raw_ids, rules)
    items, page_verdicts = find_pages(page_keys, rules.urls, rules.drops_assets, partial(_find_shared, con))
    rank = rank_of_user[user]
    # The first reason counts. Verdicts are few strings: of each line, the numbers of its reasons among all of them.
    verdict, words = np.full(len(line), -1, dtype=np.int32), list[str]()
    no_url = pc.if_else(page_keys.is_null(), "no URL", None)
    reasons = ((users["verdict"], rank), (no_url, page), (time_verdicts, time), (page_verdicts, page))
    for verdicts, places in reasons:
        code, distinct = number_strings(verdicts)
        number = np.where(np.asarray(distinct.is_null()), -1, len(words) + np.arange(len(distinct))).astype(np.int32)
        verdict = np.where(verdict < 0, number[code][places], verdict)
        words += distinct.to_pylist()
    chosen, refused = np.flatnonzero(verdict < 0), np.flatnonzero(verdict >= 0)
    day = us[chosen] // _US_A_DAY if rules.is_dated else np.zeros(len(chosen), dtype=np.int64)
    order = sort_by(line[chosen], us[chosen], rank[chosen], day)
    chosen = chosen[order]
    columns = {
        "micro_partition": users["micro_partition"].to_numpy()[rank[chosen]],
        "user_id": _take_later(users["user_id"], rank[chosen]),
        "ts": us[chosen].view("datetime64[us]"),
        "source": np.full(len(chosen), rules.source_number, dtype=np.uint64),
        "line": line[chosen],
        "url": _take_later(items, page[chosen]),
    }
    verdicts = pa.DictionaryArray.from_arrays(
        verdict[refused], pa.array(words, pa.string())
    )  # all lines may be refused
    return Events(pa.table(columns), day[order], pa.table({"line": line[refused], "verdict": verdicts}))


def name_users(raw_ids: pa.Array, user_key: bytes | None) -> pa.Array:
    """Users under the names that events have: pseudonyms, where there is a key."""
    if user_key is None:
        return raw_ids
    names = [None if raw_id is None else pseudonym(raw_id, user_key) for raw_id in raw_ids.to_pylist()]
    return pa.array(names, pa.large_string())


def _look_up_users(
    con: duckdb.DuckDBPyConnection, raw_ids: pa.Array, rules: SourceRules
) -> tuple[pa.Table, NDArray[np.int32]]:
    """The users of distinct ids (user_id, micro_partition, verdict), in the order that events have; in which of them each id
    is, int32[num_ids].
    """
    placed = place_users(con, name_users(raw_ids, rules.user_key), rules.partitions)
    user_code = placed["user_code"].to_numpy()
    rank_of_code = np.empty(len(raw_ids), dtype=np.int32)
    rank_of_code[user_code] = np.arange(len(raw_ids), dtype=np.int32)
    is_nobody = pc.fill_null(pc.equal(pc.ascii_trim(raw_ids, " "), ""), True)
    is_long = pc.greater(pc.binary_length(raw_ids), MAX_USER_BYTES)
    verdicts = pc.case_when(
        pa.StructArray.from_arrays([is_nobody, is_long], ["nobody", "long"]), "no user", "user id too long"
    )
    verdicts = verdicts.take(pa.array(user_code))
    if rules.forgotten:
        is_forgotten = np.asarray(verdicts.is_null()) & rules.forgotten.is_forgotten(placed["user_id"])
        verdicts = pc.if_else(pa.array(is_forgotten), FORGOTTEN, verdicts)
    return placed.append_column("verdict", verdicts), rank_of_code


def _find_shared(con: duckdb.DuckDBPyConnection, tokens: pl.Series) -> pl.Series:
    """Those of some tokens that several users of the source have: of all its lines, whatever part of them is made events of."""
    con.register("int_page_tokens", pa.table({"token": tokens.to_arrow(compat_level=pl.CompatLevel.oldest())}))
    rows = stream_rows(con, "intermediate/int_shared_tokens", {"token_pattern": TOKEN_PATTERN}).read_all()
    con.unregister("int_page_tokens")
    return pl.Series("token", pl.from_arrow(rows["token"]), pl.String)


def _take_later(strings: pa.Array | pa.ChunkedArray, places: NDArray[Any]) -> pa.DictionaryArray:
    """The strings at these places, not copied until they are written: most are there many times."""
    whole = strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings
    return pa.DictionaryArray.from_arrays(places.astype(np.int32, copy=False), whole)
