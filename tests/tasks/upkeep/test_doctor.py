"""What the doctor finds in a root: whole files, altered ones, and what was left over."""

from datetime import datetime
from pathlib import Path

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
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
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


def test_other_counts_than_the_manifest_says_are_damage(root: Root) -> None:
    path = root.corpus("window-r1") / "manifest.json"
    manifest = read_json(path)
    write_json(path, manifest | {"users": [manifest["users"][0] + 1, *manifest["users"][1:]]})
    assert "micro-partition 0: not as many users and tokens as the manifest says" in levels(root, "damage")[0]
