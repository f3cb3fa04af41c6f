"""Access logs: which field of a line is what, in each layout that servers write, and in one of a person's own."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.blocks import parse_text
from surf2vec.tasks.ingest.formats import recognise
from surf2vec.tasks.ingest.layouts import list_layouts
from surf2vec.tasks.ingest.records import NO_ACCESS_LINE, split_fields
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import read_events, read_rejects, take_in, write_log

BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:146.0) Gecko/20100101 Firefox/146.0"
TIME = "17/May/2015:10:05:03 +0000"
COMMON = list_layouts(IngestConfig())["combined"].lines


def split(pattern: str, *lines: str) -> list[tuple[Any, ...]]:
    """(user, url, time, method, status, agent, rejected) of lines."""
    text = "".join(f"{line}\n" for line in lines).encode()
    batch = split_fields(parse_text(text, np.arange(1, len(lines) + 1)), pattern, NO_ACCESS_LINE)
    names = ("user_id", "url", "time", "method", "status", "agent", "rejected")
    return [tuple(row[name] for name in names) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (f'1.2.3.4 - - [{TIME}] "GET /a?x=1 HTTP/1.1" 200 12 "http://r/" "{BROWSER}"',
         ("1.2.3.4", "/a?x=1", "GET", "200", BROWSER)),
        (f'1.2.3.4 - - [{TIME}] "GET /a HTTP/1.1" 200 12 "-" "Googlebot/2.1; cut',
         ("1.2.3.4", "/a", "GET", "200", "Googlebot/2.1; cut")),
        (f'1.2.3.4 - - [{TIME}] "GET /a HTTP/1.1" 200 12 "-" "A" "5.6.7.8" 0.003 up=1', ("1.2.3.4", "/a", "GET", "200", "A")),
        (f'::1 - Jane Doe [{TIME}] "GET /a b HTTP/1.0" 304 -', ("::1", "/a b", "GET", "304", None)),
        (f'h ident jane [{TIME}] "GET /a HTTP/1.0" 200', ("h", "/a", "GET", "200", None)),
        (f'h - - [{TIME}] "GET /old" 200 5', ("h", "/old", "GET", "200", None)),  # HTTP/0.9
        (f'h - - [{TIME}] "GET /q\\"x HTTP/1.1" 200 5 "-" "a \\"quoted\\" agent \\\\"',
         ("h", "/q%22x", "GET", "200", 'a \\"quoted\\" agent \\\\')),
        (f'h - - [{TIME}] "POST /a HTTP/1.1" 200 5', ("h", "/a", "POST", "200", None)),
        (f'h - - [{TIME}] "-" 408 0', ("h", "", "-", "408", None)),
        (f' - - [{TIME}] "GET /a HTTP/1.1" 200 5', ("", "/a", "GET", "200", None)),
        (f'- - - [{TIME}] "GET /a HTTP/1.1" 200 5', ("", "/a", "GET", "200", None)),
    ],
)  # fmt: skip
def test_common_and_combined(line: str, fields: tuple[Any, ...]) -> None:
    user, url, method, status, agent = fields
    assert split(COMMON, line) == [(user, url, TIME, method, status, agent, None)]


@pytest.mark.parametrize(
    "line",
    [
        f'h - - [{TIME}] "GET /a HTT', f"h - - [{TIME}] {TIME}", "free text", f'h - - [{TIME}] "GET /a HTTP/1.1" 2000 5',
        f'example.com:80 1.2.3.4 - - [{TIME}] "GET /a HTTP/1.1" 200 5',
        f'1.2.3.4, 5.6.7.8 - - [{TIME}] "GET /a HTTP/1.1" 200 5',
    ],
)  # fmt: skip
def test_what_is_no_line_of_the_common_layout(line: str) -> None:
    assert split(COMMON, line) == [(None, "", None, None, None, None, NO_ACCESS_LINE)]


def test_blank_lines_do_not_count_and_faults_stay() -> None:
    batch = split_fields(parse_text(b" \n\n\xff\n", np.arange(1, 4)), COMMON, NO_ACCESS_LINE)
    assert [(row["line"], row["rejected"]) for row in batch.to_pylist()] == [(3, "invalid UTF-8")]


@pytest.mark.parametrize(
    ("front", "page"),
    [
        ("example.com:443", "http://example.com/a"), ("example.com", "http://example.com/a"), ("10.0.0.1:80", "http://10.0.0.1/a"),
        ("localhost:8080", "http://localhost/a"), ("[::1]:80", "http://[::1]/a"), ("_", "/a"),
        ("xn--fa-hia.de:80", "http://xn--fa-hia.de/a"),
    ],
)  # fmt: skip
def test_a_site_in_front_is_part_of_the_page(front: str, page: str, tmp_path: Path) -> None:
    lines = [
        f'{front} 1.2.3.4 - - [{TIME}] "GET /a HTTP/1.1" 200 5 "-" "A"',
        f'{front} ::1 - Jane Doe [{TIME}] "GET http://other.de/ HTTP/1.1" 200 5',
    ]
    take_in(tmp_path / "root", write_log(tmp_path / "a.log", *lines, header=None))
    assert sorted(event[:2] for event in read_events(tmp_path / "root")) == [
        ("1.2.3.4", page),
        ("::1", "http://other.de/"),
    ]


def test_the_port_of_a_user_is_dropped(tmp_path: Path) -> None:
    lines = [f'{user}:51234 - - [{TIME}] "GET /a HTTP/1.1" 200 5' for user in ("1.2.3.4", "[::1]")]
    take_in(tmp_path / "root", write_log(tmp_path / "a.log", *lines, header=None))
    assert sorted(event[0] for event in read_events(tmp_path / "root")) == ["1.2.3.4", "::1"]


REQUEST = f'[{TIME}] "GET /a HTTP/1.1" 200 12'


@pytest.mark.parametrize(
    ("front", "layout"),
    [
        ("1.2.3.4 - -", "combined"), ("::1 - -", "combined"), ("host.example.com - jane", "combined"),
        ("h ident jane", "combined"),
        ("1.2.3.4:5678 - -", "combined"), ("example.com:80 1.2.3.4 - -", "vhost"), ("example.com ::1 - jane", "vhost"),
        ("example.com:80 pc17 - -", "vhost"), ("_ 1.2.3.4 - -", "vhost"), ("Nov 24 10:00:00 web nginx: 1.2.3.4 - -", "syslog"),
    ],
)  # fmt: skip
def test_layouts_are_recognised_by_the_first_lines(front: str, layout: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", "cut short", *[f"{front} {REQUEST}"] * 3, header=None)
    assert recognise(log, IngestConfig()).layout == list_layouts(IngestConfig())[layout]


@pytest.mark.parametrize("front", ["1.2.3.4, 5.6.7.8 - -", "10.0.0.1 1.2.3.4 - -", "5f3a 1.2.3.4 - -", "1.2.3.4"])
def test_where_the_user_cannot_be_told_a_log_is_refused(tmp_path: Path, front: str) -> None:
    path = write_log(tmp_path / "a.log", *[f"{front} {REQUEST}"] * 3, header=None)
    with pytest.raises(
        InputError, match=r"3 of its first 3 lines have no layout that is known.*ingest\.layouts\.own\.lines"
    ):
        recognise(path, IngestConfig())


def test_users_of_a_log_with_the_site_in_front(tmp_path: Path) -> None:
    lines = [f'{site}:80 1.2.3.{n % 3} - - [17/May/2015:10:05:0{n} +0000] "GET /a HTTP/1.1" 200 12 "-" "A"'
             for n, site in enumerate(["a.de", "b.de"] * 3)]  # fmt: skip
    messages: list[str] = []
    take_in(
        tmp_path / "root",
        write_log(tmp_path / "a.log", *lines, header=None),
        on_event=lambda name, values: messages.append(values["message"]) if name == "log" else None,
    )
    assert set(read_events(tmp_path / "root", "user_id, url")) == {
        (f"1.2.3.{n}", f"http://{site}/a") for n in range(3) for site in ("a.de", "b.de")
    }
    assert (
        "user: 2nd field, page: site (1st field) and path of the request; robots by the user agent, time: text"
        in messages[-1]
    )


OWN = r"^(?P<time>\S+ \S+) sid=(?P<user>\w+) (?P<method>[A-Z]+) (?P<url>\S+)"


def test_a_pattern_of_ones_own(tmp_path: Path) -> None:
    lines = [
        "2020-07-01 10:00:00 sid=u1 GET /a",
        "2020-07-01 10:00:01 sid=u2 POST /a",
        "2020-07-01 10:00:02 sid=u2 GET /b",
        "x",
    ]
    log, layouts = write_log(tmp_path / "a.log", *lines, header=None), {"own": {"lines": OWN}}
    take_in(tmp_path / "root", log, layouts=layouts, max_reject_ratio=0.5)
    assert read_events(tmp_path / "root", "user_id, url, ts::varchar") == [
        ("u1", "/a", "2020-07-01 10:00:00"),
        ("u2", "/b", "2020-07-01 10:00:02"),
    ]
    assert read_rejects(tmp_path / "root") == [("a.log", 4, "does not fit the layout")]
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}/b.log does not have the layout own, which fits none")):
        take_in(tmp_path / "root", write_log(tmp_path / "b.log", "2020 u1", header=None), layouts=layouts, layout="own")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?P<user>x", "unclosed group"),
        ("(?P<user>x)", "url is missing"),
        ("(?P<user>x)(?P<url>y)(?P<when>z)", "group 'when' in lines is unknown"),
        ("(?P<user>x)(?=y)(?P<url>y)", "look-ahead.*is not supported"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        IngestConfig(layouts={"own": {"lines": pattern}})


@pytest.mark.parametrize(("text", "own"), [
    ("u1 saw /a\nu2 saw /b\n", {"lines": r"^(?P<user>\w+) saw (?P<url>\S+)"}),
    ("who,what\nu1,/a\nu2,/b\n", {"user": "who", "url": "what"}),
])  # fmt: skip
def test_a_layout_needs_no_time_where_the_order_counts(tmp_path: Path, text: str, own: dict[str, str]) -> None:
    (tmp_path / "a.log").write_text(text)
    record = take_in(tmp_path / "root", tmp_path / "a.log", layouts={"own": own})
    assert (record["events"], record["times"]) == (2, {"order of the lines": 1})
