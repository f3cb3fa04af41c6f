"""Lines of a log as records, plain and hostile values, and the writers of every format."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.urls import draw_url
from tests.hostile.words import HASH, NOT_TIMES, PLAIN_PAGES, PLAIN_USERS, WORDS

FORMATS = ("csv", "tsv", "jsonl", "parquet", "access", "w3c", "ga4", "sql")
COLUMNS = ("user_id", "url", "ts", "method", "status", "user_agent")
LAYOUTS = (  # what nginx and Caddy call these columns
    ("remote_addr", "request_uri", "time_iso8601", "request_method", "status", "http_user_agent"),
    ("request.remote_ip", "request.uri", "ts", "request.method", "status", "request.headers.User-Agent"),
)
FIRST_DAY = datetime(2020, 7, 1, tzinfo=UTC)
LONG_USER, LONG_URL = "x" * 1025, "/" + "y" * 8192
AGENTS = ["Mozilla/5.0", "Mozilla/5.0", "", "Googlebot/2.1", "curl/8", *WORDS[:6]]


@dataclass(frozen=True)
class Record:
    """A line of a log: what stands in its columns; None where a format has no value."""

    user_id: str | float | None
    url: str | None
    ts: str | None
    method: str = "GET"
    status: str = "200"
    user_agent: str = "Mozilla/5.0"

    @property
    def values(self) -> list[Any]:
        return [getattr(self, name) for name in COLUMNS]


@dataclass(frozen=True)
class Written:
    """A written log. lines: the first line of each record; num_columns: 3, or 6 with method, status and agent. In the format ga4
    the method is the name of the event, GET that of a page view.
    """

    format: str
    name: str
    data: bytes
    records: list[Record]
    lines: list[int]
    num_columns: int


def draw_record(draws: Random, format: str) -> Record:
    """Three of four values are plain."""

    def pick(plain: Callable[[], Any], odd: Callable[[], Any]) -> Any:
        return plain() if draws.random() < 0.8 else odd()

    def odd_user() -> Any:
        word = draws.choice([*WORDS, *WORDS, "", " ", LONG_USER, "x" * 1024, "two\nlines", "nul\0", None, 3.0, 2.5, 7])
        return word if format in ("jsonl", "ga4") or not isinstance(word, float | int) else "7"

    def odd_url() -> Any:
        words = [draws.choice(WORDS), LONG_URL, "", f"/doc/{HASH}", "/a.css", "/n\0", None]
        return draws.choice([draw_url(draws), draw_url(draws), *words])

    def odd_time() -> Any:
        return draws.choice([*NOT_TIMES, "", None, "1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])

    at = FIRST_DAY + timedelta(seconds=draws.randrange(3 * 86_400))
    record = Record(
        pick(lambda: draws.choice(PLAIN_USERS), odd_user), pick(lambda: draws.choice(PLAIN_PAGES), odd_url),
        pick(lambda: f"{at:%Y-%m-%dT%H:%M:%SZ}", odd_time),
        pick(lambda: "GET", lambda: draws.choice(["POST", "", "get", "-", "<b>"])),
        pick(lambda: "200", lambda: draws.choice(["404", "999", "", "304", "x"])), draws.choice(AGENTS),
    )  # fmt: skip
    if format in ("access", "w3c"):
        return fit_access(record, at, format)
    return fit_text(record, format)


def fit_text(record: Record, format: str) -> Record:
    """A carriage return inside a field is a fault of its own, and an empty CSV field is no null."""
    if format == "ga4":  # its times are numbers, and those of most records decide how all are read
        return replace(record, ts=None if count_microseconds(record.ts) is None else record.ts)
    if format not in ("csv", "tsv"):
        return record
    values = ["" if value is None else str(value).replace("\r", "") for value in record.values]
    return Record(*values)


def count_microseconds(ts: str | None) -> int | None:
    """Since 1970, or None of what is no time."""
    try:
        return (datetime.fromisoformat(ts or "") - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except ValueError:
        return None


def fit_access(record: Record, at: datetime, format: str) -> Record:
    """What can stand in a line of an access log: no space in a user, no line end anywhere; and no space at all in a W3C log."""
    user = re.sub(r"[\s\x85\u2028]", "", str(record.user_id or "-")) or "-"
    url = re.sub(r"[\s\x85\u2028\x00]", "", record.url or "") or "/empty"
    method = record.method if record.method.isalpha() else "GET"
    status = record.status if re.fullmatch("[1-9][0-9][0-9]", record.status) else "200"
    agent = re.sub(r'["\\\n\r]', "", record.user_agent)
    if format == "w3c":
        url, agent = url.replace('"', ""), re.sub(r"[\s\x85\u2028]", "+", agent)
        return Record(user.replace('"', "") or "-", url or "-", f"{at:%Y-%m-%d %H:%M:%S}", method, status, agent or "-")
    return Record(user.replace('"', ""), url, f"{at:%d/%b/%Y:%H:%M:%S} +0000", method, status, agent)


def pack_zip(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log", data)
    return file.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zip": pack_zip,
}


def write_log(draws: Random, format: str) -> Written:
    """A log of one to forty records, plain or compressed; access logs begin with a plain one, by which they are known."""
    records = [draw_record(draws, format) for _ in range(draws.randint(1, 40))]
    first = Record("u1", "/a", "2020-07-01T10:00:00Z")
    if format == "access":
        records.insert(0, fit_access(first, FIRST_DAY, format))
    num_columns = 6 if format in ("access", "w3c") or draws.random() < 0.3 else 3
    if format in ("ga4", "sql"):
        num_columns = 3
    if format in ("parquet", "sql"):
        # numbers and texts do not share a column
        records = [Record(None if r.user_id is None else str(r.user_id), *r.values[1:]) for r in records]
    data, lines = WRITERS[format](draws, records, num_columns)
    suffix = {"access": ".log", "w3c": ".log", "ga4": ".jsonl"}.get(format, f".{format}")
    if format not in ("parquet", "sql") and (kind := draws.choice(["", "", *PACK])):
        suffix += kind
        data = PACK[kind](data)
    return Written(format, f"a{suffix}", data, records, lines, num_columns)


def write_delimited(delimiter: str) -> Callable[[Random, list[Record], int], tuple[bytes, list[int]]]:
    def write(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
        text, end = io.StringIO(newline=""), draws.choice(["\n", "\r\n"])
        quoting = draws.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerow(COLUMNS[:num_columns])
        lines = []
        for record in records:
            lines.append(text.getvalue().count("\n") + 1)
            writer.writerow(record.values[:num_columns])
        return text.getvalue().encode(), lines

    return write


def nest(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object whose values have these dotted names."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        inner = found
        *path, last = name.split(".")
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def write_json(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
    is_ascii, blank = draws.random() < 0.5, draws.choice(["", "\n", " \n"])
    names = draws.choice([COLUMNS, *LAYOUTS]) if num_columns == 6 else COLUMNS[:num_columns]
    # The keys are those of the first lines, so that the first record has all of them.
    objects = [
        nest(
            [
                (name, value)
                for name, value in zip(names, record.values, strict=False)
                if value is not None or not number
            ]
        )
        for number, record in enumerate(records)
    ]
    text = blank.join(json.dumps(one, ensure_ascii=is_ascii) + "\n" for one in objects)
    step = 2 if blank else 1
    return text.encode(), list(range(1, 1 + step * len(records), step))


def write_parquet(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
    width = draws.choice([pa.string(), pa.large_string(), pa.binary()])
    columns = list(zip(*(record.values for record in records), strict=True))[:num_columns]
    arrays = [pa.array([None if v is None else str(v) for v in column], pa.string()).cast(width) for column in columns]
    sink = io.BytesIO()
    pq.write_table(
        pa.table(arrays, names=list(COLUMNS[:num_columns])), sink, compression=draws.choice(["zstd", "none"])
    )
    return sink.getvalue(), list(range(1, len(records) + 1))


def write_access(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
    lines = []
    for record in records:
        url = (record.url or "").replace("\\", "\\\\").replace('"', '\\"')
        request = f"{record.method} {url} HTTP/1.1"
        lines.append(f'{record.user_id} - - [{record.ts}] "{request}" {record.status} 12 "-" "{record.user_agent}"\n')
    return "".join(lines).encode(), list(range(1, len(records) + 1))


def write_w3c(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
    """A log of a server that is started again, which writes what its fields are once more."""
    head = ["#Version: 1.0", "#Fields: date time c-ip cs-method cs-uri-stem cs(User-Agent) sc-status"]
    text, lines = list(head), []
    for record in records:
        if draws.random() < 0.05:
            text += ["#Software: Microsoft Internet Information Services 10.0", *head]
        text.append(f"{record.ts} {record.user_id} {record.method} {record.url} {record.user_agent} {record.status}")
        lines.append(len(text))
    return "".join(f"{line}\n" for line in text).encode(), lines


def write_ga4(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
    def as_event(record: Record) -> dict[str, Any]:
        params = [("engaged", {"int_value": 1}), ("page_location", {"string_value": record.url, "int_value": None})]
        return {
            "event_timestamp": count_microseconds(record.ts),
            "event_name": record.method.replace("GET", "page_view"),
            "event_params": [{"key": key, "value": value} for key, value in draws.sample(params, 2)],
            "user_pseudo_id": record.user_id,
        }

    return "".join(f"{json.dumps(as_event(record))}\n" for record in records).encode(), list(range(1, len(records) + 1))


def write_query(draws: Random, records: list[Record], num_columns: int) -> tuple[bytes, list[int]]:
    def quote(value: str | None) -> str:
        return "null" if value is None else "'" + value.replace("'", "''").replace("\0", "' || chr(0) || '") + "'"

    rows = ",\n".join(f"({', '.join(map(quote, record.values[:3]))})" for record in records)
    columns = ", ".join(f"{name}::text as {name}" for name in COLUMNS[:3])
    text = f"select {columns} from (values {rows}) as rows (user_id, url, ts)"
    return text.encode(), list(range(1, len(records) + 1))


WRITERS = {"csv": write_delimited(","), "tsv": write_delimited("\t"), "jsonl": write_json} | {
    "parquet": write_parquet,
    "access": write_access,
    "w3c": write_w3c,
    "ga4": write_ga4,
    "sql": write_query,
}
