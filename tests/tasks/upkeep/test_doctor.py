"""What the doctor finds in a root: whole files, altered ones, and what was left over."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.system.files import describe_file, read_json, write_json
from tests.flows.test_nightly import write_logs
from tests.roots.files import flip
from tests.roots.releases import make_release


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = open_root(tmp_path / "root")
    logs = write_logs(tmp_path / "day.csv", num_users=60)
    settings = IngestConfig()
    ingest(made, [str(logs)], settings, None, 10**9, 1, ignore_event)
    build_corpus(made, CorpusRequest(settings, EvaluateConfig()), 10**9, 1)
    make_release(made)
    return made


def levels(root: Root, level: str) -> list[str]:
    return [f"{finding.place}: {finding.message}" for finding in examine(root) if finding.level == level]


def test_a_whole_root_is_whole(root: Root) -> None:
    assert levels(root, "damage") == []
    assert levels(root, "warning") == []
    told = levels(root, "ok")
    assert len(told) >= 3
    assert not [line for line in told if "registry" in line]  # it has none


@pytest.mark.parametrize("pattern", ["events/**/*.parquet", "corpus/*/*.tokens.npy", "export/*/item_vectors/*.parquet"])
def test_a_flipped_byte_and_a_missing_file_are_damage(root: Root, pattern: str) -> None:
    path = sorted(root.path.glob(pattern))[-1]
    whole = flip(path)
    assert [line for line in levels(root, "damage") if path.name in line and "sha256" in line]
    path.unlink()
    assert [line for line in levels(root, "damage") if path.name in line and "missing" in line]
    path.write_bytes(whole)
    assert levels(root, "damage") == []


def test_events_that_break_a_rule_are_damage(root: Root) -> None:
    """A file that is as its manifest says, but was written wrongly: its first event is of another day, and not the first."""
    catalog = read_json(root.sources)
    name = min(catalog["files"])
    path = root.path / name
    events = pq.read_table(path)
    late = events.slice(0, 1).set_column(3, "ts", pa.array([datetime(2100, 1, 1)], pa.timestamp("us")))
    pq.write_table(pa.concat_tables([late, events.slice(1)]), path)
    catalog["files"][name] |= describe_file(path)
    write_json(root.sources, catalog)
    told = levels(root, "damage")
    assert [line for line in told if path.name in line and "1 event outside the day of the folder" in line]
    assert [line for line in told if path.name in line and "unsorted_events" in line]


def test_counts_of_a_source_that_disagree_are_damage(root: Root) -> None:
    catalog = read_json(root.sources)
    catalog["sources"][0]["events"] += 1
    write_json(root.sources, catalog)
    assert [line for line in levels(root, "damage") if "events, days and files differ" in line]


@pytest.mark.parametrize("name", ["sources.json", "corpus/*/manifest.json", "export/*/manifest.json"])
def test_a_truncated_manifest_is_damage(root: Root, name: str) -> None:
    path = sorted(root.path.glob(name))[0]
    path.write_text(path.read_text()[:-10])
    assert levels(root, "damage")


def test_orphans_are_warnings(root: Root) -> None:
    (root.events / "day=2026-01-01" / "0123456789abcdef.parquet").write_bytes(b"x")
    root.temporary.mkdir(exist_ok=True)
    (root.temporary / "left").write_text("x")
    (root.path / ".sources.json.99.tmp").write_text("x")
    found = "\n".join(levels(root, "warning"))
    assert "events files that no source names" in found
    assert "temporary files" in found
    assert levels(root, "damage") == []


def write_users(root: Root, ids: list[str], hashes: list[int]) -> None:
    """Give the corpus of the release one micro-partition with these users, each with one token, and a manifest to fit."""
    folder = root.corpus("window-r1")
    for path in folder.glob("p*"):
        path.unlink()
    users = pa.table({"user_id": pa.array(ids, pa.string()), "hash": pa.array(hashes, pa.uint64())})
    pq.write_table(users, folder / "p00000.users.parquet")
    np.save(folder / "p00000.offsets.npy", np.arange(len(ids) + 1))
    np.save(folder / "p00000.tokens.npy", np.zeros(len(ids), dtype=np.int32))
    np.save(folder / "p00000.held_out.npy", np.full(len(ids), -1, dtype=np.int32))
    files = {path.name: describe_file(path) for path in [*folder.glob("p*"), folder / "vocabulary.parquet"]}
    manifest = read_json(folder / "manifest.json") | {"partitions": 1, "users": [len(ids)], "tokens": [len(ids)]}
    write_json(folder / "manifest.json", manifest | {"files": files, "held_out_key_max": -1})


def test_users_out_of_order_twice_or_elsewhere_are_damage(root: Root) -> None:
    write_users(root, ["Z", "a", "é", "🦊"], [0, 1, 2, 3])  # by the bytes of UTF-8
    assert levels(root, "damage") == []
    write_users(root, [], [])
    assert levels(root, "damage") == []
    for ids in (["a", "Z"], ["a", "a"], ["🦊", "é"]):
        write_users(root, ids, [0, 1])
        assert "users out of order, or twice" in levels(root, "damage")[0]


def test_users_of_another_micro_partition_are_damage(root: Root) -> None:
    folder = root.corpus("window-r1")
    path = folder / "p00000.users.parquet"
    users = pq.read_table(path)
    hashes = pa.array(users["hash"].to_numpy() + np.uint64(1))
    pq.write_table(users.set_column(1, "hash", hashes), path)
    manifest = read_json(folder / "manifest.json")
    manifest["files"][path.name] = describe_file(path)
    write_json(folder / "manifest.json", manifest)
    assert "micro-partition 0: users of another" in levels(root, "damage")[0]
