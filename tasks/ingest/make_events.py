"""Turns the lines of a source into sorted events, and lists the lines that give none.

Each distinct user or page is processed once, not once per event. The rest is a sort of numbers. All given lines are in memory at
once: `tasks/ingest/staging.py` limits their number.
"""

from collections.abc import Iterator, Sequence
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

from surf2vec.sql.runner import stream_rows
from surf2vec.tasks.events.events_files import number_strings, place_users
from surf2vec.tasks.ingest.make_items import PLACEHOLDERS, find_pages
from surf2vec.tasks.release.url_rules import TOKEN_PATTERN, UrlRules
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.tasks.users.tombstones import FORGOTTEN, NOBODY, Tombstones

MAX_USER_BYTES = 1024
_US_PER_DAY = 86_400_000_000


@dataclass(frozen=True)
class SourceRules:
    """The rules by which the lines of logs become events.

    source_numbers: of the logs by place; place_bits: a line of the log at place i has the number i << place_bits | its number
    there; user_key: of the pseudonyms, if used; forgotten: users whose lines make no events.
    """

    source_numbers: Sequence[int]
    place_bits: int
    urls: UrlRules
    drops_assets: bool
    is_dated: bool
    partitions: int
    user_key: bytes | None = field(default=None, repr=False)
    forgotten: Tombstones = NOBODY


@dataclass(frozen=True)
class Events:
    """Events by day, then in the order of events files. rows: as EVENTS_SCHEMA, strings perhaps as dictionaries; day int64[n]:
    since 1970-01-01; refused (line, verdict): lines without an event; has_frequent: whether a user has over a tenth of them.
    """

    rows: pa.Table
    day: NDArray[np.int64]
    refused: pa.Table
    has_frequent: bool

    def split_days(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield each day that has events, with its rows."""
        starts = np.flatnonzero(np.diff(self.day, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(self.day)]):
            yield int(self.day[start]), self.rows.slice(start, end - start)


def make_events(con: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, rules: SourceRules) -> Events:
    """Return the events that rows of int_timed_lines make; undated ones get day 0."""
    lines = rows.read_all()
    line, us = lines["line"].to_numpy(), lines["us"].fill_null(0).to_numpy()
    user, raw_ids = number_strings(lines["user_id"])
    page, page_keys = number_strings(lines["page_key"])
    time, time_verdicts = number_strings(lines["time_verdict"])
    del lines  # frees their strings
    users, rank_of_user = _look_up_users(con, raw_ids, rules)
    items, page_verdicts = find_pages(page_keys, rules.urls, rules.drops_assets, partial(_find_shared, con))
    rank = rank_of_user[user]
    # The first reason counts. There are few distinct verdicts, so each line has the number of its verdict.
    verdict, words = np.full(len(line), -1, dtype=np.int32), list[str]()
    no_page = pc.if_else(page_keys.is_null(), "no page", None)
    reasons = ((users["verdict"], rank), (no_page, page), (time_verdicts, time), (page_verdicts, page))
    for verdicts, places in reasons:
        code, distinct = number_strings(verdicts)
        number = np.where(np.asarray(distinct.is_null()), -1, len(words) + np.arange(len(distinct))).astype(np.int32)
        verdict = np.where(verdict < 0, number[code][places], verdict)
        words += distinct.to_pylist()
    chosen, refused = np.flatnonzero(verdict < 0), np.flatnonzero(verdict >= 0)
    day = us[chosen] // _US_PER_DAY if rules.is_dated else np.zeros(len(chosen), dtype=np.int64)
    order = np.lexsort((line[chosen], us[chosen], rank[chosen], day))
    chosen = chosen[order]
    columns = {
        "micro_partition": users["micro_partition"].to_numpy()[rank[chosen]],
        "user_hash": users["user_hash"].to_numpy()[rank[chosen]],
        "user_id": _take_as_dictionary(users["user_id"], rank[chosen]),
        "ts": us[chosen].view("datetime64[us]"),
        "source": np.array(rules.source_numbers, dtype=np.uint64)[line[chosen] >> rules.place_bits],
        "line": line[chosen] & ((1 << rules.place_bits) - 1),
        "url": _take_as_dictionary(items, page[chosen]),
    }
    # Where no line is refused there is no word to take the type from.
    verdicts = pa.DictionaryArray.from_arrays(verdict[refused], pa.array(words, pa.string()))
    has_frequent = bool((np.bincount(rank[chosen]) * 10 > len(chosen)).any())
    return Events(pa.table(columns), day[order], pa.table({"line": line[refused], "verdict": verdicts}), has_frequent)


def _look_up_users(
    con: duckdb.DuckDBPyConnection, raw_ids: pa.Array, rules: SourceRules
) -> tuple[pa.Table, NDArray[np.int32]]:
    """Return users (user_id, user_hash, micro_partition, verdict) in the order of events, and each raw id's row, int32[n]."""
    names = raw_ids
    if key := rules.user_key:
        known_as = [None if raw_id is None else pseudonym(raw_id, key) for raw_id in raw_ids.to_pylist()]
        names = pa.array(known_as, pa.large_string())
    placed = place_users(con, names, rules.partitions)
    user_code = placed["user_code"].to_numpy()
    rank_of_code = np.empty(len(raw_ids), dtype=np.int32)
    rank_of_code[user_code] = np.arange(len(raw_ids), dtype=np.int32)
    is_empty = pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(raw_ids)), pa.array([*PLACEHOLDERS, None], raw_ids.type))
    is_long = pc.greater(pc.binary_length(raw_ids), MAX_USER_BYTES)
    verdicts = pc.if_else(is_empty, "no user", pc.if_else(is_long, "user id too long", None))
    verdicts = verdicts.take(pa.array(user_code))
    if rules.forgotten:
        is_forgotten = np.asarray(verdicts.is_null()) & rules.forgotten.is_forgotten(placed["user_id"])
        verdicts = pc.if_else(pa.array(is_forgotten), FORGOTTEN, verdicts)
    return placed.append_column("verdict", verdicts), rank_of_code


def _find_shared(con: duckdb.DuckDBPyConnection, tokens: pl.Series) -> pl.Series:
    """Return the tokens that several users have, in all lines of the source and not only in this part."""
    con.register("int_page_tokens", pa.table({"token": tokens.to_arrow(compat_level=pl.CompatLevel.oldest())}))
    rows = stream_rows(con, "intermediate/int_shared_tokens", {"token_pattern": TOKEN_PATTERN}).read_all()
    con.unregister("int_page_tokens")
    return pl.Series("token", pl.from_arrow(rows["token"]), pl.String)


def _take_as_dictionary(strings: pa.Array | pa.ChunkedArray, places: NDArray[Any]) -> pa.DictionaryArray:
    """Return the strings at these places without copying them: most of them repeat."""
    values = strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings
    return pa.DictionaryArray.from_arrays(places.astype(np.int32, copy=False), values)
