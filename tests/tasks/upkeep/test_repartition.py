"""Micro-partitions split and joined: the same bits for every user, the same bytes as if it had been so from the beginning."""

import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.regroup import Regrouping, arrange
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.upkeep.repartition import repartition
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.manifests import write_manifest
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import open_pinned, pin_generation
from surf2vec.trainer.system.files import read_json, write_json
from surf2vec.trainer.training import preparation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import user_hash
from tests.flows.test_nightly import write_logs
from tests.roots.ingest import check_events, read_events
from tests.roots.training import MEMORY_BYTES, make_trained, prepare, rows_by_user, train_root


def change(root: Root, partitions: int | None, memory_bytes: int = MEMORY_BYTES) -> dict[str, Any]:
    with lock_root(root, "test"):
        return repartition(root, partitions, memory_bytes, 1)


def copy(root: Root, path: Path) -> Root:
    shutil.copytree(root.path, path)
    return Root(path)


def snapshot(root: Root) -> dict[str, str]:
    """Digest of every file but the locks."""
    paths = [path for path in sorted(root.path.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(root.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def complaints(root: Root) -> list[str]:
    return [f"{found.level} {found.place}: {found.message}" for found in examine(root) if found.level != "ok"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_trained(tmp_path_factory.mktemp("trained") / "root", 4)


@pytest.mark.parametrize("partitions", [1, 2, 16])
def test_a_root_is_as_if_it_had_always_been_so(trained: Root, tmp_path: Path, partitions: int) -> None:
    root = copy(trained, tmp_path / "root")
    vectors = rows_by_user(root)
    told = change(root, partitions)
    assert (told["changed"], told["partitions_before"], told["partitions"], told["users"]) == (
        True,
        4,
        partitions,
        len(vectors),
    )
    assert rows_by_user(root) == vectors
    assert complaints(root) == []
    check_events(root.path)
    fresh, window_id = prepare(tmp_path / "fresh", partitions)
    columns = "micro_partition, user_id, url, ts, line"
    assert read_events(root.path, columns) == read_events(fresh.path, columns)
    generation = open_generation(root.store)
    assert (generation.num_partitions, generation.position) == (partitions, 2 * partitions)
    assert set(generation.manifest["users"]) == {str(p) for p in range(partitions)}
    # the corpus has the sources' sha256 in its name: both roots read the same logs
    assert generation.manifest["window_id"] == window_id == told["window_id"]
    assert open_corpus(root.corpus(window_id)).manifest == open_corpus(fresh.corpus(window_id)).manifest


def test_split_then_joined_is_as_before(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    before = open_generation(root.store).manifest
    change(root, 32)
    change(root, 4)
    after = open_generation(root.store).manifest
    digests = [{p: entry["checksum"] for p, entry in manifest["users"].items()} for manifest in (before, after)]
    assert digests[0] == digests[1]
    assert {name: after[name] for name in ("identity", "window_id", "position", "items", "curve")} == {
        name: before[name] for name in ("identity", "window_id", "position", "items", "curve")
    }
    assert read_json(root.sources)["partitions"] == 4
    assert complaints(root) == []


def test_the_same_training_is_not_done_again_and_other_logs_are_welcome(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    vectors = rows_by_user(root)
    change(root, 8)
    generation = open_generation(root.store).generation
    window_id = build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)["window_id"]
    train_root(root, window_id)
    assert open_generation(root.store).generation == generation
    assert rows_by_user(root) == vectors
    more = write_logs(tmp_path / "more.csv", 80)
    assert ingest(root, [str(more)], IngestConfig(), 8, MEMORY_BYTES, 1, ignore_event)["sources_new"] == 1
    check_events(root.path)
    window_id = build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)["window_id"]
    train_root(root, window_id)
    assert len(rows_by_user(root)) > len(vectors)


def test_bfloat16_goes_over_in_bits(tmp_path: Path) -> None:
    root = make_trained(tmp_path / "root", 2, dtype="bfloat16")
    vectors = rows_by_user(root)
    change(root, 8)
    assert rows_by_user(root) == vectors


def test_what_is_pinned_stays_as_it_is(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    pin_generation(root.store, "r1")
    vectors = rows_by_user(root)
    change(root, 8)
    pinned = open_pinned(root.store, "r1")
    assert (pinned.num_partitions, rows_by_user(root, pinned)) == (4, vectors)
    assert rows_by_user(root) == vectors


def test_a_release_whose_run_was_killed_before_pinning_is_pinned(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    generation = open_generation(root.store)
    window_id = generation.manifest["window_id"]
    export = {"generation": generation.generation, "created_from": {"window_id": window_id}}
    write_json(root.export("r1") / "manifest.json", export)
    write_json(root.export("r0") / "manifest.json", export | {"generation": 0})
    change(root, 8)
    assert open_pinned(root.store, "r1").manifest == generation.manifest
    assert not (root.store / "pinned" / "r0.json").exists()


def test_nothing_to_do_says_so_and_changes_no_byte(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    before = snapshot(root)
    told = change(root, 4)
    assert (told["changed"], told["bytes_written"]) == (False, 0)
    assert snapshot(root) == before


def test_without_a_number_it_is_what_ingest_would_choose(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    told = change(root, None)
    assert (told["partitions"], told["changed"]) == (8, True)  # the least that ingest chooses
    assert 40 <= told["users"] <= 80
    assert change(root, None)["changed"] is False


def test_a_root_without_vectors(tmp_path: Path) -> None:
    root, _ = prepare(tmp_path / "root", 4)
    assert "window_id" not in change(root, 2)
    check_events(root.path)
    assert complaints(root) == []
    assert build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)["partitions"] == 2


def test_a_corpus_of_an_earlier_version_keeps_its_vectors(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    vectors = rows_by_user(root)
    path = root.corpus(open_generation(root.store).manifest["window_id"]) / "manifest.json"
    manifest = read_json(path)
    del manifest["made_from"]
    write_json(path, manifest)
    change(root, 8)
    assert rows_by_user(root) == vectors
    assert complaints(root) == []


def test_an_unfinished_training_is_refused(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    manifest = open_generation(root.store).manifest
    write_manifest(root.store, "MANIFEST.json", manifest | {"stage": "training", "position": 3})
    before = snapshot(root)
    with pytest.raises(ConfigError, match=r"training at 38%.*finish it by the same `surf2vec run`"):
        change(root, 8)
    assert snapshot(root) == before


def test_too_little_memory_and_disk_are_refused_with_numbers(
    trained: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy(trained, tmp_path / "root")
    before = snapshot(root)
    with pytest.raises(ResourceError, match=r"2 micro-partitions need .* there are 1.0 MB: raise --host-memory"):
        change(root, 2, 10**6)
    usage = shutil.disk_usage(root.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ResourceError, match=r"of disk.*1.0 kB are free"):
        change(root, 2)
    assert snapshot(root) == before


def test_a_budget_too_small_for_one_micro_partition_fits_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "private_bytes", lambda: 10**8)  # whatever the tests before left
    root, window_id = prepare(tmp_path / "root", 1)
    job = Job(root.corpus(window_id), root.store, TrainConfig(vector_size=4096, epochs=1, threads=1), 1)
    with pytest.raises(ResourceError, match="`surf2vec repartition`") as told:
        train(job)
    needed = re.search(r"needs ([\d.]+) MB", str(told.value))
    assert needed
    job = replace(job, host_memory_bytes=int(float(needed[1]) * 1e6) - 200_000)
    with pytest.raises(ResourceError, match="the smallest plan needs"):
        train(job)
    change(root, 16)
    window_id = build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)["window_id"]
    assert train(replace(job, corpus_dir=root.corpus(window_id)))["tokens"] > 0


@pytest.mark.parametrize("pattern", ["events/*/*.parquet", "corpus/*/p00001.tokens.npy", "store/users-00001-*"])
def test_damage_is_named_and_never_carried_over(trained: Root, tmp_path: Path, pattern: str) -> None:
    root = copy(trained, tmp_path / "root")
    path = sorted(root.path.glob(pattern))[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    before = snapshot(root)
    with pytest.raises(DamageError, match=path.name):
        change(root, 8)
    assert snapshot(root) == before
    path.write_bytes(whole)
    assert change(root, 8)["changed"]


@settings(max_examples=60)
@given(
    st.lists(st.text(max_size=5), unique=True, max_size=40),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8, 64]),
)
def test_everybody_goes_where_the_hash_says(ids: list[str], before: int, after: int) -> None:
    regrouping = Regrouping(before, after)
    placed: dict[int, list[str]] = {}
    for number in range(regrouping.num_classes):
        sources = regrouping.sources(number)
        users = [user for p in sources for user in sorted(ids, key=str.encode) if user_hash(user) % before == p]
        hashes = np.array([user_hash(user) for user in users], dtype=np.uint64)
        table = pa.table({"user_id": pa.array(users, pa.string()), "hash": hashes})
        targets = regrouping.targets(number)
        for target, rows in zip(targets, arrange(table, after, targets), strict=True):
            placed[target] = [users[row] for row in rows]
    assert placed == {
        p: sorted((user for user in ids if user_hash(user) % after == p), key=str.encode) for p in range(after)
    }
