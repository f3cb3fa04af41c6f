"""Ingest from end to end on small logs: formats, and what becomes of lines."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.window import CorpusRequest, name_corpus, select_window
from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.tasks.ingest.ingest import choose_partitions, estimate_users
from surf2vec.tasks.ingest.sources import SourceFile, read_catalog
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.trainer.errors import ConfigError, InputError
from surf2vec.trainer.system.files import read_json
from tests.roots.ingest import HEADER, events_files, read_events, take_in, write_log

EVENTS = [("ann", "https://example.com/a", datetime(2020, 7, 1, 10)), ("bob", "/b", datetime(2020, 7, 1, 11, 30))]
FRAME = pl.DataFrame(EVENTS, HEADER.split(","), orient="row")
ISO = "%Y-%m-%dT%H:%M:%SZ"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def dump_access(path: Path) -> None:
    path.write_text(
        "".join(f'{u} - - [{t:%d/%b/%Y:%H:%M:%S} +0000] "GET {url} HTTP/1.1" 200 1\n' for u, url, t in EVENTS)
    )


DUMPS: dict[str, Callable[[Path], None]] = {
    "a.csv": lambda path: FRAME.write_csv(path, datetime_format=ISO),
    "a.tsv": lambda path: FRAME.write_csv(path, separator="\t", datetime_format=ISO),
    "a.jsonl": lambda path: FRAME.with_columns(pl.col("ts").dt.epoch("s").cast(pl.Float64)).write_ndjson(path),
    "a.log": dump_access,
    "a.parquet": FRAME.write_parquet,
}


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", DUMPS)
def test_every_format_gives_the_same_events(tmp_path: Path, root: Path, name: str, compression: str) -> None:
    path = tmp_path / name
    DUMPS[name](path)
    if compression:
        data = path.read_bytes()
        path = path.with_name(path.name + compression)
        with pa.CompressedOutputStream(str(path), "gzip" if compression == ".gz" else "zstd") as stream:
            stream.write(data)
    if name == "a.parquet" and compression:
        with pytest.raises(InputError, match="holds a Parquet file"):
            take_in(root, path)
        return
    record = take_in(root, path)
    first = 2 if name in ("a.csv", "a.tsv") else 1
    assert read_events(root) == [(*event, first + number) for number, event in enumerate(EVENTS)]
    assert (record["lines"], record["events"], record["num_rejected"]) == (2, 2, 0)


def test_what_is_in_the_root(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "b,/x,2020-07-02 01:00", "a,/y,2020-07-01", "a,/x,2020-07-01", "a,/x,then")
    take_in(root, log, max_reject_ratio=1)
    (source,) = read_json(root / "sources.json")["sources"]
    first, second = (f"events/day=2020-07-0{day}/{source['sha256'][:16]}.parquet" for day in (1, 2))
    assert (source["name"], source["copies"], source["bytes"]) == (str(log), [], log.stat().st_size)
    assert (source["lines"], source["events"]) == (4, 3)
    assert (source["rejected"], source["left_out"]) == ({"time not readable": 1}, {})
    assert source["days"] == {"2020-07-01": 2, "2020-07-02": 1}
    assert source["files"] == [first, second]
    files = read_json(root / "sources.json")["files"]
    assert {name: file["rows"] for name, file in files.items()} == {first: 2, second: 1}
    schema = pq.read_schema(root / first)
    assert [f"{field.name} {field.type}" for field in schema] == [
        "micro_partition int32", "user_hash uint64", "user_id string", "ts timestamp[us]", "source uint64", "line int64",
        "url string",
    ]  # fmt: skip
    assert pq.read_table(root / first)["source"].to_pylist() == [int(source["sha256"][:16], 16)] * 2
    assert pq.read_table(root / first)["line"].to_pylist() == [3, 4]


@pytest.mark.parametrize("has_key", [False, True])
def test_users_with_more_than_a_tenth_of_the_events_are_named_where_no_server_reads_it(
    tmp_path: Path, root: Path, has_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SURF2VEC_KEY", "k" * 32)
    ids = ["proxy"] * 84 + ["ten"] * 10 + ["eleven"] * 16 + [f"u{number}" for number in range(10)]
    log = write_log(tmp_path / "a.csv", *(f"{user},/a,{1_793_610_000 + at}" for at, user in enumerate(ids)))
    said: dict[str, list[str]] = {"log": [], "private": []}
    keyed = {"user_key_env": "SURF2VEC_KEY"} if has_key else {}
    take_in(root, log, on_event=lambda name, values: said.get(name, []).append(values.get("message", "")), **keyed)
    names = [pseudonym(user, b"k" * 32) if has_key else user for user in ("proxy", "eleven")]
    users = f"{names[0]} (84), {names[1]} (16)"
    message = f"a.csv: more than a tenth of the events each are of {users}: is a user one person there?"
    assert said["private"] == [message]
    assert not any("proxy" in message for message in said["log"])


def test_users_that_are_frequent_in_several_logs_are_named_once(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", *(f"u{at % 2 * at},/a,{1_793_610_000 + at}" for at in range(40)))
    records = [{"user_id": f"u{at % 2 * at}", "url": "/b", "ts": 1_793_610_000 + at} for at in range(40)]
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    said = list[str]()
    take_in(
        root,
        log,
        tmp_path / "b.jsonl",
        on_event=lambda name, values: said.append(values["message"]) if name == "private" else None,
    )
    assert said == [
        "a.csv and 1 other log: more than a tenth of the events each are of u0 (40): is a user one person there?"
    ]


def test_a_log_without_method_or_status_keeps_its_assets(tmp_path: Path, root: Path) -> None:
    log = write_log(
        tmp_path / "a.csv", "u,/a.png,2020-07-01,me", "u,/a,2020-07-01,Googlebot", header=f"{HEADER},user_agent"
    )
    assert take_in(root, log)["left_out"] == {"crawler": 1}
    assert [row[1] for row in read_events(root)] == ["/a.png"]


def test_settings_of_columns_zone_and_items(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,https://www.example.com/a/b?id=1,2020-07-01 01:00", header="host,page,time")
    columns = {"user": ("nobody", "host"), "url": "page", "time": "time"}
    take_in(root, log, columns=columns, timezone="Europe/Berlin", granularity="prefix", keep_query="id")
    assert read_events(root) == [("u", "https://example.com/a", datetime(2020, 6, 30, 23), 2)]
    assert read_json(root / "sources.json")["rules"] == {
        "version": 2, "timezone": "Europe/Berlin", "granularity": "prefix", "prefix_depth": 1, "keep_query": ["id"],
        "mask_secrets": True,
    }  # fmt: skip


HASH = "5f4dcc3b5aa765d61d8327deb882cf99"
SECRETS = (
    f"ann,/reset/{HASH},2020-07-01", f"ann,/reset/{HASH}/done,2020-07-01", f"bob,/reset/{HASH[::-1]},2020-07-01",
    f"ann,/doc/{HASH.upper()},2020-07-01", f"bob,/doc/{HASH.upper()}?x,2020-07-01",
    "ann,https://e.com/u/ann%40e.com/,2020-07-01", "ann,/a.jsp;jsessionid=7,2020-07-01", f"bob,{HASH[1:]}0,2020-07-01",
)  # fmt: skip


def test_secrets_do_not_reach_events(tmp_path: Path, root: Path) -> None:
    take_in(root, write_log(tmp_path / "a.csv", *SECRETS))
    assert [row[1] for row in sorted(read_events(root), key=lambda row: row[3])] == [
        "/reset/(token)", "/reset/(token)/done", "/reset/(token)", f"/doc/{HASH.upper()}", f"/doc/{HASH.upper()}",
        "https://e.com/u/(email)", "/a.jsp", f"{HASH[1:]}0",
    ]  # fmt: skip


def test_secrets_stay_where_that_is_asked_for(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", *SECRETS)
    take_in(root, log, mask_secrets=False)
    assert {row[1] for row in read_events(root)} == {
        f"/reset/{HASH}", f"/reset/{HASH}/done", f"/reset/{HASH[::-1]}", f"/doc/{HASH.upper()}",
        "https://e.com/u/ann%40e.com", "/a.jsp;jsessionid=7", f"{HASH[1:]}0",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"ingest\.mask_secrets is True, but was False when"):
        take_in(root)


def test_a_root_of_older_rules_is_read_again_and_that_is_said(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "ann,https://e.com\\@evil.com/x,2020-07-01")
    take_in(root, log)
    catalog = read_catalog(Root(root))
    catalog.rules = {"version": 1, "timezone": "UTC", "granularity": "page", "prefix_depth": None, "keep_query": []}
    catalog.write(Root(root))
    with pytest.raises(ConfigError, match=r"are of version 2, but were of 1 when .* made: pass all logs again"):
        take_in(root)
    messages: list[str] = []
    take_in(root, log, on_event=lambda name, values: messages.append(values.get("message", "")))
    again = "all logs are read again: the rules from URL to item (docs/urls.md) are of version 2, but were of 1"
    assert again in messages
    assert [row[1] for row in read_events(root)] == ["https://e.com/@evil.com/x"]
    assert read_json(root / "sources.json")["rules"]["version"] == 2


def test_what_is_said_of_one_small_log_reads_well(tmp_path: Path, root: Path) -> None:
    messages: list[str] = []
    log = write_log(tmp_path / "a.csv", "ann,/a,2020-07-01")
    take_in(root, log, partitions=None, on_event=lambda name, values: messages.append(values.get("message", "")))
    assert any(message.startswith("reading 1 new log file, ") for message in messages), messages
    assert "8 micro-partitions, judging by the size of the logs" in messages


def test_pages_with_very_many_queries_are_told_of(tmp_path: Path, root: Path) -> None:
    lines = [f"u{n % 9},/index.php?u{n}@example.com&lang=en&id={n}#x,2020-07-01" for n in range(800)]
    lines += [f"u{n % 9},https://e.com/?gclid={n}&utm_source={n},2020-07-01" for n in range(800)]
    lines += [f"u{n % 9},/few?page={n % 9},2020-07-01" for n in range(800)]
    record = take_in(root, write_log(tmp_path / "a.csv", *lines), write_log(tmp_path / "b.csv", *lines[:700]))
    [told] = record["many_queries"]
    assert (told["page"], told["keys"]) == ("/index.php", ["id", "lang"])
    assert 400 <= told["num_queries"] <= 1600  # one in sixteen is looked at
    kept = tmp_path / "kept"
    assert take_in(kept, tmp_path / "a.csv", keep_query="id")["many_queries"] == []


@pytest.mark.parametrize("columns", [("User_ID", "user_id"), ("user_id", "User_ID")])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_that_differ_by_case_are_told_apart(
    tmp_path: Path, root: Path, columns: tuple[str, str], suffix: str
) -> None:
    row = {name: "right" if name == "user_id" else "wrong" for name in columns} | {"url": "/a", "ts": "2020-07-01"}
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif suffix == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        delimiter = "," if suffix == "csv" else "\t"
        path.write_text(f"{delimiter.join(row)}\n{delimiter.join(row.values())}\n")
    take_in(root, path)
    assert [user for user, *_ in read_events(root)] == ["right"]


def test_a_source_is_read_again_when_the_settings_that_read_it_change(tmp_path: Path, root: Path) -> None:
    a = write_log(tmp_path / "a.csv", "ann,1.2.3.4,/a,01.07.2020", header="user_id,host,url,ts")
    b = write_log(tmp_path / "b.csv", "bob,/b,2020-07-01")
    assert take_in(root, a, time_format="%d.%m.%Y")["sources_new"] == 1
    window = select_window(Root(root), None, None, None)
    take_in(root, b)  # other settings are no fault of a source that is not given again
    assert [user for user, *_ in read_events(root)] == ["ann", "bob"]
    by_host = {"columns": {"user": ("host", "user_id")}, "time_format": "%d.%m.%Y"}
    assert take_in(root, a, **by_host)["sources_replaced"] == 1
    assert take_in(root, a, **by_host)["sources_known"] == 1
    assert [user for user, *_ in read_events(root)] == ["1.2.3.4", "bob"]
    other = select_window(Root(root), None, None, None)
    assert window.read_by != other.read_by
    request = CorpusRequest(IngestConfig(), EvaluateConfig())
    same_sources = replace(other, source_digests=window.source_digests)
    assert name_corpus(request.inputs(window)) != name_corpus(request.inputs(same_sources))


def test_a_log_in_the_order_of_its_lines(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/b", "u,/a", "u,/b", header="user_id,url")
    take_in(root, log, columns={"time": ()})
    assert read_events(root, "line, url, epoch_us(ts)") == [(2, "/b", 2), (3, "/a", 3), (4, "/b", 4)]
    assert "day=undated" in events_files(root)[0]


def test_the_number_of_micro_partitions_is_fixed_by_the_first_ingest(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", *(f"u{n},/a,2020-07-01" for n in range(100)))
    write_log(tmp_path / "b.csv", "u,/a,2020-07-01")
    take_in(root, tmp_path / "a.csv", partitions=16)
    with pytest.raises(
        ConfigError, match=r"store\.partitions is 32, but .* has 16 micro-partitions.*surf2vec repartition"
    ):
        take_in(root, tmp_path / "b.csv", partitions=32)
    take_in(root, tmp_path / "b.csv", partitions=None)
    assert {partition for (partition,) in read_events(root, "micro_partition")} == set(range(16))


@pytest.mark.parametrize(
    ("num_users", "partitions"), [(0, 8), (400_000, 8), (700_000, 16), (20_000_000, 512), (10**12, 65_536)]
)
def test_a_micro_partition_has_about_50_000_users(num_users: int, partitions: int) -> None:
    assert choose_partitions(num_users) == partitions


@pytest.mark.parametrize(
    ("format", "compression", "num_bytes", "num_users"),
    [
        ("csv", "none", 2_500_000, 1000),
        ("tsv", "gzip", 500_000, 1000),
        ("access", "zstd", 1_200_000, 1000),
        ("parquet", "none", 500_000, 1000),
        ("csv", "xz", 500_000, 1000),
        ("csv", "zip", 500_000, 1000),
    ],
)
def test_users_are_estimated_by_bytes(format: str, compression: str, num_bytes: int, num_users: int) -> None:
    log = (LogFile(Path("log"), format, compression), SourceFile("log", "", (num_bytes, 0, 0)))
    assert estimate_users([log]) == num_users
    assert estimate_users([log, log]) == 2 * num_users
    assert estimate_users([]) == 0


def test_nothing_ingested_and_nothing_given(root: Path) -> None:
    with pytest.raises(InputError, match="nothing was ingested into .*: give logs with --logs"):
        take_in(root)


@pytest.mark.parametrize(
    ("name", "columns", "lines", "events", "left_out"),
    [
        ("nasa_19950801.tsv.gz", {"user": "host", "time": "time"}, 30_969, 9_666, 21_303),
        ("apache_combined.log.gz", {}, 10_000, 2_220, 7_780),
        ("yoochoose_100k.parquet", {}, 83_846, 83_846, 0),
        ("msweb.parquet", {}, 113_845, 113_845, 0),
        ("gowalla_test.parquet", {}, 217_242, 217_242, 0),
        pytest.param("wikispeedia_unfinished.parquet", {}, 129_295, 129_295, 0, marks=pytest.mark.slow),
    ],
)
def test_real_logs(
    data_dir: Path, root: Path, name: str, columns: dict[str, Any], lines: int, events: int, left_out: int
) -> None:
    record = take_in(root, data_dir / name, columns=columns, partitions=None)
    assert (record["lines"], record["events"], sum(record["left_out"].values())) == (lines, events, left_out)
    assert record["num_rejected"] == 0


def test_a_log_of_many_days_syncs_the_folder_of_the_days_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    log = write_log(tmp_path / "a.csv", *(f"u,/p,2020-{month:02d}-01" for month in range(1, 13)))
    take_in(tmp_path / "root", log, min_item_events=1)
    events = tmp_path / "root" / "events"
    assert synced.count(str(events)) == 1
    assert sum(Path(path).parent == events for path in synced) == 12
