"""Bad input: each kind of it, what the message says, and that what was there before is untouched."""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.ingest import ingest as ingest_module
from surf2vec.tasks.ingest import staging
from surf2vec.trainer.errors import InputError, RejectedError, ResourceError, SurfError
from tests.faults.small_disk import small_disk
from tests.roots.ingest import read_events, read_rejects, snapshot, take_in, write_log

GOOD = [f"u{n % 7},/p{n % 11},2020-07-01 10:{n % 60:02}" for n in range(200)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that has a source already."""
    take_in(tmp_path / "root", write_log(tmp_path / "before" / "old.csv", "u,/old,2020-06-30"))
    return tmp_path / "root"


def refuse(root: Path, error: type[SurfError], message: str, *patterns: Path | str, **settings: Any) -> str:
    """Ingest what must be refused, with this message, and nothing of the root may change; returns the whole message."""
    before = snapshot(root)
    with pytest.raises(error, match=message) as caught:
        take_in(root, *patterns, **settings)
    assert snapshot(root) == before
    assert not list((root / ".tmp").glob("ingest*"))
    assert type(caught.value) is error
    return str(caught.value)


def test_a_missing_column_in_one_of_two_files(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", *GOOD)
    write_log(tmp_path / "b.csv", "u,/a,2020-07-01", header="host,page,time")
    message = refuse(root, InputError, r"b\.csv has no column 'user_id' for the user", f"{tmp_path}/*.csv")
    assert (
        "it has 'host', 'page', 'time'; name them with --set ingest.columns.user=NAME --set ingest.columns.url=page"
        in message
    )


def test_two_files_of_different_schema_with_names_for_both(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", "u,/a,2020-07-01")
    write_log(tmp_path / "b.csv", "2020-07-02;v;/b", header="time;host;page")
    columns = {"user": ("user_id", "host"), "url": ("url", "page"), "time": ("ts", "time")}
    take_in(root, f"{tmp_path}/*.csv", columns=columns)
    assert [row[:2] for row in read_events(root)] == [("u", "/a"), ("u", "/old"), ("v", "/b")]


def test_damaged_parquet(tmp_path: Path, root: Path) -> None:
    table = pa.table({"user_id": ["u"] * 50_000, "url": [f"/{n * 7919}" for n in range(50_000)], "ts": range(50_000)})
    pq.write_table(table, tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[2000:4000] = b"\xaa" * 2000
    (tmp_path / "a.parquet").write_bytes(data)
    refuse(root, InputError, r"a\.parquet cannot be read as Parquet .* deliver it again", tmp_path / "a.parquet")


def test_parquet_with_text_that_is_none(tmp_path: Path, root: Path) -> None:
    offsets = pa.array([0, 1, 7], pa.int32()).buffers()[1]
    users = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"aJane\xff\xfe"))
    pq.write_table(pa.table({"user_id": users, "url": ["/a", "/a"], "ts": [1, 2]}), tmp_path / "a.parquet")
    message = refuse(root, InputError, r"a\.parquet has text that is not valid UTF-8", tmp_path / "a.parquet")
    assert "Jane" not in message


def test_a_fault_of_ours_says_nothing_of_the_log(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/a,2020-07-01")
    fault = duckdb.ConversionException("Could not convert string 'Jane Doe' to INT32")
    with mock.patch.object(staging, "recognise_times", side_effect=fault):
        message = refuse(root, SurfError, r"DuckDB failed while .* \(ConversionException\)", log)
    assert "Jane" not in message


BAD_LINES = {
    b"u,/a": "wrong number of columns",
    b"u,/a,2020-07-01,x": "wrong number of columns",
    b'u,"/a,2020-07-01': "unterminated quote",
    b"u,/\xff\xfe,2020-07-01": "invalid UTF-8",
    b"u,/a\x00,2020-07-01": "NUL byte",
    b"u,/" + b"x" * 1_000_000 + b",2020-07-01": "URL too long",
    b"u" * 2000 + b",/a,2020-07-01": "user id too long",
    b"u,/a,": "time not readable",
    b"u,/a,whenever": "time not readable",
    b"u,/a,1960-01-01": "time out of scale",
    b"u,/a,2999-01-01": "time in the future",
}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_unusable_lines_are_rejects_and_the_others_count(tmp_path: Path, root: Path, newline: bytes) -> None:
    lines = [b"user_id,url,ts"]
    expected = []
    for number, (line, reason) in enumerate(BAD_LINES.items()):
        lines += [b"u,/good,2020-07-01", b"" if number % 3 == 0 else b"v,/good,2020-07-01", line]
        expected.append(("a.csv", len(lines), reason))
    (tmp_path / "a.csv").write_bytes(newline.join(lines))
    record = take_in(root, tmp_path / "a.csv", max_reject_ratio=1)
    assert read_rejects(root) == expected
    assert sum(record["rejected"].values()) == record["num_rejected"] == len(BAD_LINES)
    assert record["lines"] == record["events"] + record["num_rejected"]
    assert {url for _, url, _, _ in read_events(root)} == {"/good", "/old"}


def test_an_unusable_line_does_not_take_the_next_one_with_it(tmp_path: Path, root: Path) -> None:
    for number, line in enumerate(BAD_LINES):
        name = f"{number}.csv"
        (tmp_path / name).write_bytes(b"user_id,url,ts\n" + line + b"\nu,/next,2020-07-01\n")
        take_in(root, tmp_path / name, max_reject_ratio=1)
    assert sum(url == "/next" for _, url, _, _ in read_events(root)) == len(BAD_LINES)


def test_unusable_lines_of_other_formats(tmp_path: Path, root: Path) -> None:
    good = '{"user_id": "u", "url": "/a", "ts": "2020-07-01"}'
    (tmp_path / "a.jsonl").write_text(f'{good}\n{good[:-3]}\n\n{{"user_id": "u", "ts": "2020-07-01"}}\n{good}\n')
    request = '1.2.3.4 - - [01/Jul/2020:00:00:00 +0000] "GET /b HTTP/1.1" 200 1'
    (tmp_path / "b.log").write_text(f"{request}\nfree text\n{request.replace('01/Jul/2020', 'whenever')}\n")
    table = pa.table({"user_id": ["u", None, "u"], "url": ["/c", "/c", None], "ts": [datetime(2020, 7, 1)] * 3})
    pq.write_table(table, tmp_path / "c.parquet")
    record = take_in(root, tmp_path / "*.*", max_reject_ratio=1)
    assert read_rejects(root) == [
        ("a.jsonl", 2, "not JSON"),
        ("b.log", 2, "not an access-log line"),
        ("b.log", 3, "time not readable"),
    ]
    assert record["left_out"] == {"no page": 2, "no user": 1}


def test_too_many_rejects(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", *GOOD)
    write_log(
        tmp_path / "b.csv",
        *GOOD[:95],
        "u,/a,whenever",
        f"{'u' * 2000},/a,2020-07-01",
        "u,/a,whenever",
        *GOOD[95:100],
        "u,/a,whenever",
    )
    message = refuse(
        root, RejectedError, r"4 of 304 new lines \(1\.32%\) are unusable, more than ingest\.max_reject_ratio allows \(1\.00%\)",
        f"{tmp_path}/*.csv",
    )  # fmt: skip
    assert f"3 time not readable, 1 user id too long; most in {tmp_path}/b.csv" in message
    assert f"listed in {root}/rejects/failed" in message
    listed = [
        ("b.csv", 97, "time not readable"),
        ("b.csv", 98, "user id too long"),
        ("b.csv", 99, "time not readable"),
        ("b.csv", 105, "time not readable"),
    ]
    assert read_rejects(root, "rejects/failed") == listed
    assert read_rejects(root) == []
    take_in(root, f"{tmp_path}/*.csv", max_reject_ratio=0.02)
    assert read_rejects(root) == listed
    assert not (root / "rejects" / "failed").exists()


def test_the_limit_itself_is_allowed(tmp_path: Path, root: Path) -> None:
    take_in(root, write_log(tmp_path / "a.csv", *GOOD[:99], "u,/a,whenever"), max_reject_ratio=0.01)


@pytest.mark.parametrize(
    ("line", "beside", "message"),
    [
        ("u,/a,whenever", GOOD, r"b\.csv has 1 lines and none is usable \(1 time not readable\)(?s:.*)rejects/failed"),
        ("u,about:blank,2020-07-01", [], r"nothing is usable in 1 new logs with 1 lines \(1 not a page\)"),
    ],
)
def test_a_source_without_one_usable_line(
    tmp_path: Path, root: Path, line: str, beside: list[str], message: str
) -> None:
    if beside:
        write_log(tmp_path / "a.csv", *beside)
    write_log(tmp_path / "b.csv", line)
    refuse(root, RejectedError, message, f"{tmp_path}/*.csv")


def test_the_first_times_that_cannot_be_read_are_shown_and_their_format_is_a_setting(
    tmp_path: Path, root: Path
) -> None:
    log = write_log(tmp_path / "a.csv", *(f"u,/a,{day:02}.11.2020 08:21" for day in (1, 1, 13, 14, 15)))
    message = refuse(root, RejectedError, r"5 lines and none is usable \(5 time not readable\)", log)
    assert (
        "the first times that could not be read: '01.11.2020 08:21', '13.11.2020 08:21', '14.11.2020 08:21'; say how they are "
        "written with --set 'ingest.time_format=%d.%m.%Y %H:%M'"
    ) in message
    take_in(root, log, time_format="%d.%m.%Y %H:%M", timezone="UTC")
    assert len(read_events(root)) == 1 + 5


def test_a_source_that_is_all_left_out_beside_a_good_one(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", *GOOD)
    write_log(tmp_path / "b.csv", "u,about:blank,2020-07-01")
    assert take_in(root, f"{tmp_path}/*.csv")["left_out"] == {"not a page": 1}


def test_a_future_date_is_one_after_tomorrow(tmp_path: Path, root: Path) -> None:
    now = datetime.now(UTC)
    times = [now - timedelta(minutes=1), now + timedelta(hours=23), now + timedelta(hours=25)]
    take_in(
        root, write_log(tmp_path / "a.csv", *(f"u,/a,{time:%Y-%m-%dT%H:%M:%SZ}" for time in times)), max_reject_ratio=1
    )
    assert read_rejects(root) == [("a.csv", 4, "time in the future")]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_log(tmp_path / "a.csv", *GOOD)
    create_table = staging.create_table

    def append_meanwhile(*arguments: Any, **sources: str) -> str:
        with open(log, "a") as file:
            file.write("u,/late,2020-07-01\n")
        return create_table(*arguments, **sources)

    monkeypatch.setattr(staging, "create_table", append_meanwhile)
    refuse(root, InputError, r"a\.csv changed while it was read: deliver it again", log)


def test_no_permission_to_write(tmp_path: Path, root: Path) -> None:
    """As a root's user may do anything, a file stands where a folder is needed."""
    log = write_log(tmp_path / "a.csv", "u,/a,2020-07-01")
    (root / ".tmp").rmdir()
    (root / ".tmp").write_text("in the way")
    before = snapshot(root)
    with pytest.raises(ResourceError, match=r"no permission to write below .* while logs are ingested"):
        take_in(root, log)
    assert snapshot(root) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission_to_read(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/a,2020-07-01")
    log.chmod(0)
    refuse(root, InputError, r"cannot read .*a\.csv", log)


def test_too_little_memory(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", *GOOD)
    message = r"1\.0 MB of memory do not suffice while logs are ingested: raise --host-memory"
    refuse(root, ResourceError, message, log, memory_bytes=1_000_000)


def test_the_disk_is_full(tmp_path: Path) -> None:
    draw = random.Random(1)
    lines = (f"{draw.getrandbits(64):x},/{draw.getrandbits(64):x},2020-07-01" for _ in range(200_000))
    with small_disk(tmp_path / "disk", "2m") as disk:
        take_in(disk / "root", write_log(tmp_path / "a.csv", "u,/old,2020-06-30"))
        message = (
            r"the disk of .* is full while logs are ingested: .*B are free(?s:.*)What was there before is untouched"
        )
        refuse(disk / "root", ResourceError, message, write_log(tmp_path / "big.csv", *lines))


def test_a_full_disk_at_the_commit(tmp_path: Path, root: Path) -> None:
    before, full = (root / "sources.json").read_bytes(), OSError(28, "No space left on device")
    with (
        mock.patch.object(ingest_module, "sync_paths", side_effect=full),
        pytest.raises(ResourceError, match="is full"),
    ):
        take_in(root, write_log(tmp_path / "a.csv", *GOOD))
    assert (root / "sources.json").read_bytes() == before
    take_in(root)  # what was moved is not seen, and goes
    take_in(root, tmp_path / "a.csv")
    assert len(read_events(root)) == 201
