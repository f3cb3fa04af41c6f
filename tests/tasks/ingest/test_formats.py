"""What a file is told to be, and what a person is told when it is nothing that can be read."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import ColumnsConfig, IngestConfig
from surf2vec.tasks.ingest.formats import recognise
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import write_log

WANTED = IngestConfig()
CSV = "user_id,url,ts\nu,/a,1\n"
JSON = '{"user_id": "u", "url": "/a", "ts": 1}\n'
ACCESS = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12\n'


def put(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "format", "delimiter"),
    [
        ("a.csv", CSV, "csv", ","),
        ("a.csv", CSV.replace(",", ";"), "csv", ";"),
        ("a.csv", CSV.replace(",", "\t"), "tsv", "\t"),
        ("a.csv", '"user_id","url","ts"\n"u","/a","1"\n', "csv", ","),
        ("a.csv", 'x;"user_id, really";user_id;url;ts\n1;2;3;4;5\n', "csv", ";"),
        ("a.tsv", CSV.replace(",", "\t"), "tsv", "\t"),
        ("a.2026-07-01.CSV", CSV, "csv", ","),
        ("a.txt", CSV.replace(",", "|"), "csv", "|"),
        ("log", CSV, "csv", ","),
        ("a.jsonl", JSON, "jsonl", ","),
        ("a.ndjson", "\n" + JSON, "jsonl", ","),
        ("a.log", JSON, "jsonl", ","),
        ("access.log", ACCESS, "access", ","),
        ("access.log.1", "cut short\n" + ACCESS, "access", ","),
    ],
)
def test_formats(tmp_path: Path, name: str, data: str, format: str, delimiter: str) -> None:
    log = recognise(put(tmp_path / name, data), WANTED)
    assert (log.format, log.shape.delimiter, log.compression) == (format, delimiter, "none")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.gz", "a.log.gz"])
def test_gzip_is_told_by_its_bytes(tmp_path: Path, name: str) -> None:
    log = recognise(put(tmp_path / name, gzip.compress(CSV.encode())), WANTED)
    assert (log.format, log.compression, log.describe()) == ("csv", "gzip", "csv gzip")


def test_zstd_and_parquet(tmp_path: Path) -> None:
    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(JSON.encode())
    assert recognise(tmp_path / "a.jsonl.zst", WANTED).describe() == "jsonl zstd"
    pq.write_table(pa.table({"ts": [1], "url": ["/a"], "user_id": ["u"]}), tmp_path / "a")
    assert recognise(tmp_path / "a", WANTED).header == ("ts", "url", "user_id")


def test_the_first_name_that_a_file_has_is_taken(tmp_path: Path) -> None:
    wanted = IngestConfig(columns=ColumnsConfig(user=("uid", "host", "user_id"), time=()))
    log = recognise(put(tmp_path / "a.csv", "user_id,host,url,status\nu,h,/a,200\n"), wanted)
    assert log.columns["user"] == "host"
    assert log.columns["time"] is None
    assert log.is_access_log


def test_json_keys_come_from_all_of_the_first_lines(tmp_path: Path) -> None:
    data = 'broken\n{"user_id": "u", "ts": 1}\n[1]\n{"url": "/a"}\n'
    assert recognise(put(tmp_path / "a.jsonl", data), WANTED).header == ("user_id", "ts", "url")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", "", r"a\.csv is empty \(0 bytes\)"),
        ("a.csv", "\n \n", r"a\.csv is empty"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("a.csv", "user_id,url,ts\n", "has a header and no lines"),
        ("a.csv", "\n" + CSV, "first line of .* is blank: it must name the columns"),
        ("a.csv", "user,url,ts\nu,/a,1\n",
         r"no column 'user_id' for the user; it has 'user', 'url', 'ts'; perhaps --set ingest\.columns\.user=user"),
        ("a.csv", "user_id,url\nu,/a\n", r"no column 'ts' for the time; .*'ingest\.columns\.time=\[\]'"),
        ("a.jsonl", '{"user_id": 1, "page": "/a", "ts": 1}\n', r"no column 'url' for the URL; it has 'user_id', 'page', 'ts'"),
        ("a.csv", "someone@example.com,/a,2026-01-01\n" * 2, "its first line looks like data.*give it a header line"),
        ("a.json", '[\n {"user_id": 1}\n]\n', "has no JSON object a line: an array.*jq -c"),
        ("a.csv.gz", CSV, r"is not what its name says, \.gz"),
        ("a.csv.gz", gzip.compress(CSV.encode() * 1000, mtime=0)[:-12], "is cut short or damaged"),
        ("a.csv.gz", b"\x1f\x8bnothing", "is cut short or damaged"),
        ("a.parquet", CSV, r"is not what its name says, \.parquet"),
        ("a.parquet", b"PAR1\0nothing", "is cut short or damaged Parquet"),
        ("a.csv", CSV.encode("utf-16"), r"not in UTF-8: convert it with cat a\.csv . iconv -f UTF-16 -t UTF-8 > new-a\.csv"),
        ("a.csv", CSV.replace("\n", "\r"), "carriage return alone"),
        ("a", "\n" + "z" * 70_000, "first line of .* is blank"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, name: str, data: str | bytes, message: str) -> None:
    path = put(tmp_path / name, data)
    with pytest.raises(InputError, match=message) as caught:
        recognise(path, WANTED)
    assert str(path) in str(caught.value)
    assert "someone" not in str(caught.value)


def test_parquet_without_rows_or_columns(tmp_path: Path) -> None:
    empty = pa.schema({"user_id": pa.string(), "url": pa.string(), "ts": pa.int64()}).empty_table()
    pq.write_table(empty, tmp_path / "empty.parquet")
    with pytest.raises(InputError, match=r"is empty \(0 rows\)"):
        recognise(tmp_path / "empty.parquet", WANTED)
    pq.write_table(empty.drop(["url"]), tmp_path / "lacking.parquet")
    with pytest.raises(InputError, match="no column 'url' for the URL; it has 'user_id', 'ts'"):
        recognise(tmp_path / "lacking.parquet", WANTED)


def test_many_columns_are_not_all_named(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.csv", "x", header=",".join(f"column{n}" for n in range(100)))
    with pytest.raises(InputError, match=r"'column49', \.\.\.;"):
        recognise(path, WANTED)
