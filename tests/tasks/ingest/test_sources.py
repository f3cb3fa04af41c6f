"""Which files the globs name, and how sources.json goes on from delivery to delivery."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest import deliveries
from surf2vec.tasks.ingest.deliveries import Delivery, check_shapes, plan_delivery, rules_of
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import Catalog, SourceFile, Stamp, read_catalog, sum_counts
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.events import ignore_event

CONFIG = IngestConfig()
ROOT = Root(Path("/nowhere"))


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def find_sources(patterns: list[str], known: dict[str, tuple[Stamp, str]] | None = None) -> list[SourceFile]:
    return deliveries.find_sources(patterns, known or {}, RemoteLogs(Path("/nowhere"), CONFIG), ignore_event)


def names(sources: list[SourceFile]) -> list[str]:
    return [Path(source.name).name for source in sources]


def test_globs_name_files_each_once(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "deep/c.csv", "other.txt"):
        put(tmp_path / name)
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    assert names(find_sources([f"{tmp_path}/*.csv", str(tmp_path / "a.csv")])) == ["a.csv", "b.csv"]
    assert names(find_sources([f"{tmp_path}/**/*.csv"])) == ["a.csv", "b.csv", "c.csv"]
    assert names(find_sources([f"{tmp_path}/*"])) == ["a.csv", "b.csv", "other.txt"]
    assert find_sources([]) == []


def test_a_name_with_signs_of_a_glob_in_it(tmp_path: Path) -> None:
    assert names(find_sources([str(put(tmp_path / "a[1]*.csv"))])) == ["a[1]*.csv"]


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "logs" / "a.csv", "abc")
    monkeypatch.chdir(tmp_path)
    (source,) = find_sources(["logs/../logs/*.csv"])
    assert source.name == str(tmp_path / "logs" / "a.csv")
    assert source.bytes == 3
    assert source.source_id == "ba7816bf8f01cfea"  # sha256 of abc


def test_nothing_matches(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file matches '.*nothing\*\.csv'.*check the path"):
        find_sources([f"{tmp_path}/nothing*.csv"])
    with pytest.raises(InputError, match="no file matches"):
        check_shapes([f"{tmp_path}/nothing*.csv"], CONFIG)
    put(tmp_path / "a.csv", "user_id,url,ts\nu,/a,1\n")
    check_shapes([f"{tmp_path}/*.csv", "s3://nowhere/*.csv"], CONFIG)  # nobody asks elsewhere for it


@pytest.mark.parametrize("pattern", ["logs", "logs/", "l*"])
def test_a_folder_is_no_log(tmp_path: Path, pattern: str) -> None:
    put(tmp_path / "logs" / "a.csv")
    with pytest.raises(InputError, match=r"is a folder, not a file: name the files in it, for instance --logs '.*/\*'"):
        find_sources([f"{tmp_path}/{pattern}"])


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="pipe is no regular file"):
        find_sources([str(tmp_path / "pipe")])
    with pytest.raises(InputError, match="cannot read .*dangling: No such file"):
        find_sources([str(tmp_path / "dangling")])


def test_known_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.csv")
    (first,) = find_sources([str(path)])
    known = {first.name: (first.stamp, "f" * 64)}
    assert find_sources([str(path)], known)[0].sha256 == "f" * 64
    put(path, "y")  # as long as before
    os.utime(path, ns=(first.stamp[1], first.stamp[1]))
    assert find_sources([str(path)], known)[0].sha256 != "f" * 64  # the inode's own time cannot be set back


def source(name: str, content: str) -> SourceFile:
    return SourceFile(name, content, (1, 2, 3))


def entry(content: str, name: str, *copies: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"files": {}, "rejected": {}, "read_by": {}, "stamps": {}}
    return {"sha256": content, "name": name, "copies": list(copies)} | nothing


def catalog_of(*entries: dict[str, Any]) -> Catalog:
    return Catalog(8, None, rules_of(CONFIG), {entry["sha256"]: entry for entry in entries})


def deliver(catalog: Catalog, *sources: SourceFile, config: IngestConfig = CONFIG) -> Delivery:
    """Plan a delivery and carry it out on the catalog, as a commit does."""
    delivery = plan_delivery(ROOT, catalog, sorted(sources, key=lambda s: s.name), config)
    for new in delivery.to_ingest:
        before = catalog.entries.get(new.sha256, {"name": new.name, "copies": []})
        catalog.entries[new.sha256] = entry(new.sha256, before["name"], *before["copies"])
    catalog.rename(delivery.names, delivery.stamps)
    return delivery


def counts(delivery: Delivery) -> tuple[int, int, int]:
    return delivery.num_new, delivery.num_replaced, delivery.num_known


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("123"), min_size=1), max_size=6))
def test_after_any_deliveries_each_name_has_its_last_bytes(deliveries: list[dict[str, str]]) -> None:
    catalog, expected = Catalog(), dict[str, str]()
    for delivered in deliveries:
        delivery = deliver(catalog, *[source(name, content) for name, content in delivered.items()])
        assert sum(counts(delivery)) == len(delivered)
        catalog.rules = rules_of(CONFIG)
        expected |= delivered
        assert catalog.names == expected
        assert all(digest == entry["sha256"] for digest, entry in catalog.entries.items())


@pytest.mark.parametrize(
    ("changed", "is_other"),
    [
        ({"min_item_events": 9}, False), ({"columns": {"user": "host"}}, False), ({"granularity": "prefix:3"}, True),
        ({"keep_query": ("b", "a", "a")}, True), ({"granularity": "prefix"}, True), ({"timezone": "Asia/Tokyo"}, True),
        ({"mask_secrets": False}, True),
    ],
)  # fmt: skip
def test_settings_that_are_rules(changed: dict[str, Any], is_other: bool) -> None:
    assert (rules_of(IngestConfig(**changed)) != rules_of(CONFIG)) == is_other


def test_the_order_of_kept_keys_is_no_rule() -> None:
    assert rules_of(IngestConfig(keep_query=("b", "a"))) == rules_of(IngestConfig(keep_query=("a", "b")))


def test_sources_json(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert read_catalog(root) == Catalog()
    catalog = catalog_of(entry("2", "b"), entry("1", "c", "a"))
    catalog.write(root)
    first = root.sources.stat().st_ino
    read_catalog(root).write(root)
    assert root.sources.stat().st_ino == first  # nothing changed, so nothing is written
    assert read_catalog(root).names == {"a": "1", "b": "2", "c": "1"}
    root.sources.write_text('{"format_version": 99}')
    with pytest.raises(DamageError, match=r"sources\.json is not of format 4"):
        read_catalog(root)


def test_counts_are_summed_largest_first() -> None:
    assert list(sum_counts([{"a": 1, "c": 5}, {"b": 2, "a": 1}]).items()) == [("c", 5), ("a", 2), ("b", 2)]
