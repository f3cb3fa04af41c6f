"""Delimited lines: the fast way and the slow way agree, and every line is accounted for."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surf2vec.tasks.ingest.columns import ROLES
from surf2vec.tasks.ingest.delimited import _parse_slowly, parse_fields
from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.tasks.ingest.shapes import Shape


def make_log(delimiter: str, header: str, *names: str | None) -> LogFile:
    """A log with one-letter columns; names: of the column of each role."""
    columns = dict.fromkeys(ROLES) | dict(zip(ROLES, names, strict=False))
    return LogFile(Path("a.csv"), "csv", header=tuple(header), columns=columns, shape=Shape(delimiter))


LOG = make_log(",", "abc", "a", "b", "c")
Row = tuple[Any, ...]


def rows(data: bytes, log: LogFile = LOG, first_line: int = 1) -> list[Row]:
    """(line, user, url, time, rejected) of each record, by line."""
    found = parse_fields(data, np.arange(first_line, first_line + data.count(b"\n")), log).to_pylist()
    return sorted((row["line"], row["user_id"], row["url"], row["time"], row["rejected"]) for row in found)


WRONG = "wrong number of columns"
OPEN = "unterminated quote"


def bad(line: int, reason: str) -> Row:
    return (line, None, None, None, reason)


GOOD = b"u,/a,1\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"u,/a,1\nv,/b,2\n", [(1, "u", "/a", "1", None), (2, "v", "/b", "2", None)]),
        (b"u,/a,1\r\nv,/b,2\r\n", [(1, "u", "/a", "1", None), (2, "v", "/b", "2", None)]),
        (b'"u","/a,""b""",1\n,,\n', [(1, "u", '/a,"b"', "1", None), (2, "", "", "", None)]),
        (b'u,/a"b",NULL\n', [(1, "u", '/a"b"', "NULL", None)]),
        (b"u,/a\nu,/a,1,x\n" + GOOD, [bad(1, WRONG), bad(2, WRONG), (3, "u", "/a", "1", None)]),
        (b"\n\nu,/a,1\n\r\n \nu,/a,1\n\n", [(3, "u", "/a", "1", None), (6, "u", "/a", "1", None)]),
        (b'u,"/a,1\n' + GOOD, [bad(1, "unterminated quote"), (2, "u", "/a", "1", None)]),
        (b'u,"/a,1\nv,"/b,2\n' + GOOD, [bad(1, OPEN), bad(2, OPEN), (3, "u", "/a", "1", None)]),
        (GOOD + b'u,"/a,1\n', [(1, "u", "/a", "1", None), bad(2, "unterminated quote")]),
        (b'u,"two\nlines",1\n' + GOOD, [(1, "u", "two\nlines", "1", None), (3, "u", "/a", "1", None)]),
        (b'u,"a\n\nb\r\nc",1\n' + GOOD, [(1, "u", "a\n\nb\nc", "1", None), (5, "u", "/a", "1", None)]),
        (b"u,/\xff,1\n" + GOOD, [bad(1, "invalid UTF-8"), (2, "u", "/a", "1", None)]),
        (b"u,/\x00,1\n" + GOOD, [bad(1, "NUL byte"), (2, "u", "/a", "1", None)]),
        (b"u,/a\rb,1\n" + GOOD, [(1, "u", "/a\rb", "1", None), (2, "u", "/a", "1", None)]),
        (b'u,"/a"\rb,1\n' + GOOD, [bad(1, "carriage return inside a line"), (2, "u", "/a", "1", None)]),
    ],
)
def test_lines(data: bytes, expected: list[Row]) -> None:
    assert rows(data) == expected
    assert rows(data, first_line=1001) == [(line + 1000, *rest) for line, *rest in expected]


def test_only_columns_in_use_must_be_text() -> None:
    log = make_log(",", "abc", "a", "b")
    for odd in (b"\xff", b"\x00"):
        assert rows(b"u,/a," + odd + b"\nv,/b,1\nw,/" + odd + b",1\n", log)[:2] == [
            (1, "u", "/a", None, None),
            (2, "v", "/b", None, None),
        ]


def test_a_column_may_be_used_twice_and_in_any_order() -> None:
    log = make_log("\t", "abcd", "d", "b", None, None, None, "a", "d")
    [found] = parse_fields(b"a\tb\tc\td\n", np.array([2]), log).to_pylist()
    used = {"line": 2, "user_id": "d", "url": "b", "status": "a", "agent": "d"}
    assert found == dict.fromkeys(found) | used


def test_a_line_longer_than_the_csv_module_likes() -> None:
    url = "/" + "x" * 1_000_000
    assert rows(f'u,"{url}",1\nu,"/a,1\n'.encode()) == [(1, "u", url, "1", None), bad(2, "unterminated quote")]


PLAIN = st.text(st.sampled_from("ab\"',; \té世"), max_size=6)


@given(st.lists(st.tuples(PLAIN, PLAIN, PLAIN), min_size=1, max_size=8))
def test_what_the_csv_module_writes_is_read(records: list[tuple[str, str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    data = text.getvalue().encode()
    expected = [(line, *record, None) for line, record in enumerate(records, 1)]
    assert rows(data) == [row for row in expected if data.split(b"\n")[row[0] - 1].strip()]


LINES = st.lists(
    st.sampled_from(
        [GOOD, b'"u","/a",1\n', b'u,"a""b",1\r\n', b"u,/a\n", b"u,/a,1,2\n", b'u,/a"b,1\n', b"u,/\xc3\xa9,1\n"]
    ),
    min_size=1,
    max_size=8,
)


@given(LINES)
@example([b'u,/a"b,1\n', b"u,/a\n"])
def test_fast_and_slow_agree(lines: list[bytes]) -> None:
    data = b"".join(lines)
    numbers = np.arange(data.count(b"\n"))
    slow = sorted(tuple(row.values()) for row in _parse_slowly(data, numbers, LOG).to_pylist())
    assert sorted(tuple(row.values()) for row in parse_fields(data, numbers, LOG).to_pylist()) == slow


@given(
    st.lists(st.sampled_from([GOOD, b'u,"/a,1\n', b'u,"/a",1\n', b"\xff\n", b"\x00,,\n", b"u\n", b'"\n']), max_size=12)
)
def test_every_line_is_a_record_or_part_of_one_or_rejected(lines: list[bytes]) -> None:
    data = b"".join(lines)
    if not data:
        return
    found = rows(data)
    numbers = [line for line, *_ in found]
    assert numbers == sorted(set(numbers))
    in_records = sum(
        (row[2] or "").count("\n") + (row[3] or "").count("\n") + (row[1] or "").count("\n") for row in found
    )
    assert len(found) + in_records == len(lines)
