"""Logs of nested records: names with dots, lists of pages, and what is refused because it is no value."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.ingest.nested import find, list_fields
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import read_events, read_rejects, take_in

PARAMS = [
    {"key": "engaged", "value": {"string_value": None, "int_value": 1}},
    {"key": "page_location", "value": {"string_value": "https://shop.example/p/0", "int_value": None}},
]
RECORD = {
    "id": 7,
    "context": {"ip": "192.0.2.1", "page": {"url": "/a"}},
    "properties.x": {"y.z": 1},
    "events": [{"aid": 1, "ts": 10}, {"aid": 2, "ts": 20}],
    "event_params": PARAMS,
    "tags": ["s", "t"],
    "empty": [{"key": "a"}, {"key": "b", "value": 2}],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 7), ("context.page.url", "/a"), ("properties.x.y.z", 1), ("events.aid", [1, 2]), ("tags", ["s", "t"]),
        ("event_params.page_location", "https://shop.example/p/0"), ("event_params.engaged", 1),
        ("empty.b", 2), ("context.page.title", None), ("id.x", None), ("event_params.none", None),
    ],
)  # fmt: skip
def test_find(name: str, value: Any) -> None:
    assert find(RECORD, name) == value


def test_the_fields_of_a_record() -> None:
    assert dict(list_fields(RECORD)) == {
        "id": False, "context.ip": False, "context.page.url": False, "properties.x.y.z": False, "events.aid": True,
        "events.ts": True, "event_params.engaged": False, "event_params.page_location": False, "tags": True,
        "empty.a": False, "empty.b": False,
    }  # fmt: skip


def write(path: Path, records: Iterable[Any]) -> Path:
    """A log of records as JSON lines or Parquet."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(records)), path)
    else:
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def seconds(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ["event_params.page_location", "context.page.url"])
def test_names_with_dots(tmp_path: Path, suffix: str, name: str) -> None:
    records = [
        {
            "who": {"id": user},
            "at": {"ts": 1_793_610_000 + user},
            "event_params": PARAMS,
            "context": {"page": {"url": page}},
        }
        for user, page in enumerate(["https://shop.example/p/0"] * 3)
    ]
    columns = {"user": "who.id", "url": name, "time": "at.ts"}
    take_in(tmp_path / "root", write(tmp_path / f"a.{suffix}", records), columns=columns)
    assert read_events(tmp_path / "root") == [
        (str(user), "https://shop.example/p/0", seconds(1_793_610_000 + user), user + 1) for user in range(3)
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_list_of_pages_is_many_events_in_order(tmp_path: Path, suffix: str) -> None:
    records = [
        {"user_id": "u", "url": ["/c", "/a", "/b"], "ts": 1_793_610_000},
        {"user_id": "u", "url": ["/d"], "ts": 1_793_610_000},
        {"user_id": "u", "url": [], "ts": 1_793_610_000},
        {"user_id": "u", "url": ["/e", None], "ts": 1_793_610_000},
    ]
    record = take_in(tmp_path / "root", write(tmp_path / f"a.{suffix}", records))
    in_order = sorted(read_events(tmp_path / "root"), key=lambda event: event[3])
    assert [event[1] for event in in_order] == ["/c", "/a", "/b", "/d", "/e"]
    assert (record["lines"], record["events"], record["left_out"]) == (7, 5, {"no page": 2})


def test_the_rejects_of_a_list_have_the_number_of_its_line(tmp_path: Path) -> None:
    records = [{"user_id": "u", "url": ["/a", {"b": 1}, "/c"], "ts": 1_793_610_000}] * 3
    record = take_in(tmp_path / "root", write(tmp_path / "a.jsonl", records), max_reject_ratio=1)
    assert read_rejects(tmp_path / "root") == [("a.jsonl", line, "page is a list or an object") for line in (1, 2, 3)]
    assert (record["lines"], record["events"], record["num_rejected"]) == (9, 6, 3)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_list_of_objects_has_a_time_for_each_page(tmp_path: Path, suffix: str) -> None:
    records = [{"session": 5, "events": [{"aid": 3, "ts": 1_793_610_000_000}, {"aid": 1, "ts": 1_793_610_007_000}]}]
    columns = {"user": "session", "url": "events.aid", "time": "events.ts"}
    take_in(tmp_path / "root", write(tmp_path / f"a.{suffix}", records), columns=columns)
    found = [event[:3] for event in read_events(tmp_path / "root")]
    assert found == [("5", "1", seconds(1_793_610_007)), ("5", "3", seconds(1_793_610_000))]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"url": "context"}, "has an object 'context' with the fields 'context.ip', 'context.page.url' for the URL"),
        ({"user": "tags"}, r"has a list for the user \('tags'\), not one value"),
        ({"time": "tags"}, r"has a list for the time \('tags'\), not one value"),
    ],
)
def test_no_object_or_list_is_a_value(tmp_path: Path, suffix: str, columns: dict[str, str], message: str) -> None:
    record = RECORD | {"user_id": "u", "url": "/a", "ts": 1}
    with pytest.raises(InputError, match=message) as caught:
        take_in(tmp_path / "root", write(tmp_path / f"a.{suffix}", [record]), columns=columns)
    assert "192.0.2.1" not in str(caught.value)


@pytest.mark.parametrize(("role", "word"), [("user_id", "user"), ("url", "page"), ("ts", "time")])
@pytest.mark.parametrize("value", [{"a": 1}, ["/a", "/b"]])
@pytest.mark.parametrize("name", ["{}", "fields.{}"])
def test_an_object_that_appears_later_is_a_reject(tmp_path: Path, role: str, word: str, value: Any, name: str) -> None:
    good = {"user_id": "u", "url": "/a", "ts": 1_793_610_000}
    records: list[Any] = [good] * 2000 + [good | {role: value}, good | {"user_id": "[u]", "url": "{a}"}]
    records = records if name == "{}" else [{"fields": record} for record in records]
    columns = {"user": name.format("user_id"), "url": name.format("url"), "time": name.format("ts")}
    record = take_in(tmp_path / "root", write(tmp_path / "a.jsonl", records), max_reject_ratio=1, columns=columns)
    assert read_rejects(tmp_path / "root") == [("a.jsonl", 2001, f"{word} is a list or an object")]
    assert record["events"] == 2001


@pytest.mark.parametrize("name", ["{}", "fields.{}"])
def test_half_of_a_surrogate_pair_is_a_reject(tmp_path: Path, name: str) -> None:
    good = {"user_id": "é", "url": "/a", "ts": 1_793_610_000}
    records: list[Any] = [good, good | {"user_id": "\ud800"}, good | {"url": "/\udfff"}]
    columns = {"user": name.format("user_id"), "url": name.format("url"), "time": name.format("ts")}
    log = write(tmp_path / "a.jsonl", records if name == "{}" else [{"fields": record} for record in records])
    take_in(tmp_path / "root", log, max_reject_ratio=1, columns=columns)
    assert read_rejects(tmp_path / "root") == [("a.jsonl", line, "not JSON") for line in (2, 3)]


@pytest.mark.parametrize("path", ["a.csv", "a.jsonl"])
def test_lists_and_objects_written_as_text_are_no_pages(tmp_path: Path, path: str) -> None:
    texts = ['["/a", "/b"]', '{"url": "/a"}', "[{'url': '/a'}]", "[a]"]
    records = [{"user_id": "u", "url": text, "ts": 1_793_610_000} for text in texts]
    log = write(tmp_path / path, records)
    if path == "a.csv":
        pacsv.write_csv(pa.Table.from_pylist(records), log)
    take_in(tmp_path / "root", log, max_reject_ratio=1)
    first = 2 if path == "a.csv" else 1
    assert read_rejects(tmp_path / "root") == [(path, first + row, "page is a list or an object") for row in range(3)]


def test_nested_columns_of_parquet_that_are_null_in_the_first_rows(tmp_path: Path) -> None:
    page = pa.struct([("url", pa.string()), ("tags", pa.list_(pa.string()))])
    rows = [{"user_id": "u", "page": None, "ts": 1_793_610_000}] * 2000
    rows.append(rows[0] | {"page": {"url": "/a", "tags": ["/x", "/y"]}})
    schema = pa.schema([("user_id", pa.string()), ("page", page), ("ts", pa.int64())])
    log = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), log)
    with pytest.raises(InputError, match=r"an object 'page' with the fields 'page\.url', 'page\.tags'"):
        take_in(tmp_path / "root", log, columns={"url": "page"})
    for name, pages in (("page.url", ["/a"]), ("page.tags", ["/x", "/y"])):
        record = take_in(tmp_path / name, log, columns={"url": name})
        assert [event[1] for event in read_events(tmp_path / name)] == pages
        assert record["left_out"] == {"no page": 2000}
