"""Micro-partitions split and joined: events as if it had been so from the beginning; vectors and releases stay."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.records import ReleaseBefore
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.tasks.training.base import BaseRelease
from surf2vec.tasks.training.beginning import _read_known
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.upkeep.repartition import repartition
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation, write_manifest
from surf2vec.trainer.store.tokens import matching_partitions, open_corpus
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.training import preparation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.flows.test_nightly import write_logs
from tests.roots.files import bytes_of, flip
from tests.roots.ingest import check_events, read_events, write_log
from tests.roots.training import MEMORY_BYTES, make_trained, prepare, rows_by_user, train_root


def change(root: Root, partitions: int | None, memory_bytes: int = MEMORY_BYTES) -> dict[str, Any]:
    with lock_root(root, "test"):
        return repartition(root, partitions, memory_bytes, 1)


def copy(root: Root, path: Path) -> Root:
    shutil.copytree(root.path, path)
    return Root(path)


def complaints(root: Root) -> list[str]:
    return [f"{found.level} {found.place}: {found.message}" for found in examine(root) if found.level != "ok"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_trained(tmp_path_factory.mktemp("trained") / "root", 4)


@pytest.mark.parametrize("partitions", [1, 2, 16])
def test_events_are_as_if_it_had_always_been_so_and_all_else_stays(
    trained: Root, tmp_path: Path, partitions: int
) -> None:
    root = copy(trained, tmp_path / "root")
    pin_generation(root.store, "r1")
    before = bytes_of(root.path)
    told = change(root, partitions)
    assert (told["changed"], told["partitions_before"], told["partitions"]) == (True, 4, partitions)
    after = bytes_of(root.path)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {
        name for name in before.keys() | after.keys() if name.startswith(("events/", "sources.json"))
    }
    assert complaints(root) == []
    check_events(root.path)
    fresh, window_id = prepare(tmp_path / "fresh", partitions)
    columns = "micro_partition, user_id, url, ts, line"
    assert read_events(root.path, columns) == read_events(fresh.path, columns)
    assert build(root) == window_id  # the corpus has the sources' sha256 in its name: both roots read the same logs
    assert open_corpus(root.corpus(window_id)).manifest == open_corpus(fresh.corpus(window_id)).manifest


def build(root: Root) -> str:
    return build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)["window_id"]


@pytest.mark.parametrize("partitions", [2, 16])
def test_a_full_night_then_begins_with_the_vectors_of_the_users_it_knows(
    trained: Root, tmp_path: Path, partitions: int
) -> None:
    root = copy(trained, tmp_path / "root")
    generation = open_generation(root.store)
    before = {user_id: row[: 4 * generation.vector_size] for user_id, row in rows_by_user(root).items()}
    change(root, partitions)
    more = write_log(tmp_path / "more.csv", "user-3,/page/1,2026-01-03", "user-3,/page/5,2026-01-03")
    ingest(root, [str(more)], IngestConfig(), None, MEMORY_BYTES, 1, ignore_event)
    corpus = open_corpus(root.corpus(build(root)))
    record = ReleaseBefore(release="r1", window_id=generation.manifest["window_id"], space_id="s", full_until=None)
    known = _read_known(root, corpus, BaseRelease(record, generation))
    num_known = 0
    for partition in range(partitions):
        places = known.users(partition)
        rows = known.begin(generation.config, partition, corpus.read(partition).hashes, places)
        for user_id, vector, place in zip(corpus.read_ids(partition).to_pylist(), rows.vectors, places, strict=True):
            assert (place >= 0) == (user_id != "user-3")
            assert (vector.tobytes() == before[user_id]) == (place >= 0)
            num_known += place >= 0
    assert num_known == len(before) - 1


def test_other_logs_are_welcome(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    num_users = len(rows_by_user(root))
    change(root, 8)
    more = write_logs(tmp_path / "more.csv", 80)
    assert ingest(root, [str(more)], IngestConfig(), 8, MEMORY_BYTES, 1, ignore_event)["sources_new"] == 1
    check_events(root.path)
    train_root(root, build(root))
    assert open_generation(root.store).num_partitions == 8
    assert len(rows_by_user(root)) > num_users


def test_without_a_number_it_is_what_ingest_would_choose_and_then_nothing_is_to_do(
    trained: Root, tmp_path: Path
) -> None:
    root = copy(trained, tmp_path / "root")
    told = change(root, None)
    assert (told["partitions"], told["changed"]) == (8, True)  # the least that ingest chooses
    assert told["users"] == len({user_id for user_id, *_ in read_events(root.path)})
    before = bytes_of(root.path)
    for partitions in (None, 8):
        told = change(root, partitions)
        assert (told["changed"], told["bytes_written"]) == (False, 0)
    assert bytes_of(root.path) == before


def test_an_unfinished_training_is_refused(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    manifest = open_generation(root.store).manifest
    write_manifest(root.store, "MANIFEST.json", manifest | {"stage": "training", "position": 3})
    before = bytes_of(root.path)
    with pytest.raises(ConfigError, match="finish it by the same `surf2vec run`.*then repartition"):
        change(root, 8)
    assert bytes_of(root.path) == before


def test_too_little_memory_is_refused(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    before = bytes_of(root.path)
    with pytest.raises(ResourceError, match="host_memory|--host-memory"):
        change(root, 2, 2 * 10**6)
    assert bytes_of(root.path) == before


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
    assert train(replace(job, corpus_dir=root.corpus(build(root))))["tokens"] > 0


def test_damage_is_named_and_never_carried_over(trained: Root, tmp_path: Path) -> None:
    root = copy(trained, tmp_path / "root")
    path = sorted(root.path.glob("events/*/*.parquet"))[-1]
    whole = flip(path)
    before = bytes_of(root.path)
    with pytest.raises(DamageError, match=path.name):
        change(root, 8)
    assert bytes_of(root.path) == before
    path.write_bytes(whole)
    assert change(root, 8)["changed"]


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 64]), st.integers(0, 2**64 - 1))
def test_a_user_is_in_a_matching_micro_partition(before: int, after: int, user_hash: int) -> None:
    matching = [matching_partitions(partition, after, before) for partition in range(after)]
    assert user_hash % before in matching[user_hash % after]
    assert sorted({partition for found in matching for partition in found}) == list(range(before))
