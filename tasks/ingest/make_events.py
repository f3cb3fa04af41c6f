"""Lines of a source as the events they make, sorted, and as lines that make none.

Lines are numbered as they are read, so a distinct user or page is kept and looked at once, not once an event: pseudonyms come
from SQL, items from `tasks/ingest/make_items.py`, micro-partitions and the order of users from
`tasks/users/placement.py`. What is left is a sort of numbers. All lines given are in memory at once, as numbers:
`tasks/ingest/staging.py` gives as many as may be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sql.runner import stream_rows
from tasks.events.numbering import Numbering, sort_by
from tasks.ingest.make_items import find_pages
from tasks.ingest.urls import TOKEN_PATTERN, UrlRules
from tasks.users.placement import hash_users, place_users
from tasks.users.tombstones import FORGOTTEN, NOBODY, Tombstones

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


@dataclass(frozen=True)
class _Lines:
    """Rows of int_timed_lines, in any order: line, us int64[n]; user and page int32[n], their places among the distinct ids and
    page keys, whose last is null.
    """

    line: NDArray[np.int64]
    us: NDArray[np.int64]
    time_verdict: pa.DictionaryArray
    user: NDArray[np.int32]
    page: NDArray[np.int32]
    raw_ids: pa.Array
    page_keys: pa.Array


def make_events(con: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, rules: SourceRules) -> Events:
    """The events that some rows of int_timed_lines make; those without a date are of day 0."""
    lines = _read_lines(rows)
    line, us, user, page = lines.line, lines.us, lines.user, lines.page
    users, rank_of_code = _look_up_users(con, lines.raw_ids, rules)
    items, page_verdicts = find_pages(
        lines.page_keys, rules.urls, rules.drops_assets, lambda tokens: _find_shared(con, tokens)
    )
    user_rank = rank_of_code[user]
    is_event = _is_null(users["verdict"])[user_rank] & _is_null(page_verdicts)[page] & _is_null(lines.time_verdict)
    chosen = np.flatnonzero(is_event)
    day = us[chosen] // _US_A_DAY if rules.is_dated else np.zeros(len(chosen), dtype=np.int64)
    order = sort_by(line[chosen], us[chosen], user_rank[chosen], day)
    chosen = chosen[order]
    rank = user_rank[chosen]
    columns = {
        "micro_partition": users["micro_partition"].to_numpy()[rank],
        "user_id": _take_later(users["user_id"], rank),
        "ts": us[chosen].view("datetime64[us]"),
        "source": np.full(len(chosen), rules.source_number, dtype=np.uint64),
        "line": line[chosen],
        "url": _take_later(items, page[chosen]),
    }
    refused = np.flatnonzero(~is_event)
    verdict = _first_verdict(
        (users["verdict"], user_rank[refused]),
        (pc.if_else(lines.page_keys.is_null(), "no URL", None), page[refused]),
        (lines.time_verdict, refused),
        (page_verdicts, page[refused]),
    )
    return Events(pa.table(columns), day[order], pa.table({"line": line[refused], "verdict": verdict}))


def _read_lines(rows: pa.RecordBatchReader) -> _Lines:
    """Lines as they are read: a string is kept once, however often it is there."""
    users, pages = Numbering(), Numbering()
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))]
    time_verdicts = [pa.nulls(0, pa.string()).dictionary_encode()]
    for batch in rows:
        # copies, or all of the batch would stay
        numbers = (batch[name].fill_null(0).to_numpy().copy() for name in ("line", "us"))
        parts.append((*numbers, users.add(batch["user_id"]), pages.add(batch["page_key"])))
        time_verdicts.append(batch["time_verdict"].dictionary_encode())
    line, us, user, page = (np.concatenate(column) for column in zip(*parts, strict=True))
    user[user < 0], page[page < 0] = users.num_distinct, pages.num_distinct
    verdicts = pa.chunked_array(time_verdicts).unify_dictionaries().combine_chunks()
    return _Lines(line, us, verdicts, user, page, users.distinct_and_null(), pages.distinct_and_null())


def _take_later(strings: pa.Array, places: NDArray) -> pa.DictionaryArray:
    """The strings at these places, not copied until they are written: most are there many times."""
    return pa.DictionaryArray.from_arrays(places.astype(np.int32, copy=False), strings)


def _first_verdict(*reasons: tuple[pa.Array, NDArray]) -> pa.DictionaryArray:
    """For each line the first of its reasons (verdicts, the line's places among them) that is not null.

    Lines have codes: all lines of a log may be refused, and their words would take more memory than the lines.
    """
    words: list[str] = []
    codes = np.full(len(reasons[0][1]), -1, dtype=np.int32)
    for verdicts, places in reasons:
        encoded = verdicts if pa.types.is_dictionary(verdicts.type) else verdicts.dictionary_encode()
        code = encoded.indices.fill_null(-1).to_numpy()[places]
        codes = np.where((codes < 0) & (code >= 0), code + len(words), codes)
        words += encoded.dictionary.to_pylist()
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words, pa.string()))


def _is_null(values: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    return values.is_null().to_numpy(zero_copy_only=False)


def _look_up_users(
    con: duckdb.DuckDBPyConnection, raw_ids: pa.Array, rules: SourceRules
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """The users of distinct ids (user_id, micro_partition, verdict), in the order that events have; in which of them each id
    is, int64[num_ids].
    """
    raw_users = {"raw_id": raw_ids, "user_code": np.arange(len(raw_ids), dtype=np.int32)}
    con.register("int_raw_users", pa.table(raw_users))
    users = stream_rows(con, "intermediate/int_source_users", rules.sql).read_all().combine_chunks()
    con.unregister("int_raw_users")
    user_ids, verdicts = users["user_id"].combine_chunks(), users["verdict"].combine_chunks()
    micro_partition, order = place_users(user_ids, hash_users(user_ids), rules.sql["partitions"])
    rank_of_code = np.empty(len(raw_ids), dtype=np.int64)
    rank_of_code[users["user_code"].to_numpy()[order]] = np.arange(len(raw_ids))
    placed = {"user_id": user_ids, "micro_partition": micro_partition, "verdict": _leave_out(user_ids, verdicts, rules)}
    return pa.RecordBatch.from_pydict(placed).take(pa.array(order)), rank_of_code


def _find_shared(con: duckdb.DuckDBPyConnection, tokens: pl.Series) -> pl.Series:
    """Those of some tokens that several users of the source have: of all its lines, whatever part of them is made events of."""
    con.register("int_page_tokens", pa.table({"token": tokens.to_arrow(compat_level=pl.CompatLevel.oldest())}))
    rows = stream_rows(con, "intermediate/int_shared_tokens", {"token_pattern": TOKEN_PATTERN}).read_all()
    con.unregister("int_page_tokens")
    return pl.Series("token", pl.from_arrow(rows["token"]), pl.String)


def _leave_out(user_ids: pa.Array, verdicts: pa.Array, rules: SourceRules) -> pa.Array:
    """The verdicts on users, with one on those who were forgotten."""
    if not rules.forgotten:
        return verdicts
    is_gone = _is_null(verdicts) & rules.forgotten.is_forgotten(pl.Series(user_ids))
    return pc.if_else(pa.array(is_gone), FORGOTTEN, verdicts)
