"""A training ends bit for bit the same, however it was divided or stopped (one CPU thread); killed: see test_crash.py."""

import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError, TrainingError
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.system.units import parse_bytes
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import StoppedError, train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits, find_topics, read_item_table
from tests.trainer.training.stopping import PLAN, divided, every, train_until

CONFIG = TrainConfig(vector_size=16, epochs=4, threads=1, alpha=0.1, negative=5)


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora") / "planted"
    write_corpus(folder, planted_histories(num_users=400), partitions=8)
    return folder


def make_job(corpus_dir: Path, store_dir: Path, **changes: Any) -> Job:
    return Job(corpus_dir, store_dir, dataclasses.replace(CONFIG, **changes), host_memory_bytes=4 * 10**9)


@pytest.fixture(scope="module")
def undisturbed(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_dir = tmp_path_factory.mktemp("undisturbed")
    train(make_job(corpus_dir, store_dir))
    return store_dir


def test_losses_fall_and_vectors_find_the_planted_topics(corpus_dir: Path, tmp_path: Path) -> None:
    result = train(make_job(corpus_dir, tmp_path, epochs=30))
    assert result["curve"][-1]["loss"] < 0.6 * result["curve"][0]["loss"]
    assert result["curve"][-1]["heldout_loss"] < 0.8 * result["curve"][0]["heldout_loss"]
    assert find_topics(tmp_path) > 0.9


@pytest.mark.parametrize("chunk_partitions", [1, 3])
def test_many_chunks_end_as_one_chunk_does(
    corpus_dir: Path, tmp_path: Path, undisturbed: Path, chunk_partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAN, divided(chunk_partitions))
    train(make_job(corpus_dir, tmp_path))
    assert_same_bits(tmp_path, undisturbed)


def test_a_budget_in_which_users_do_not_fit_ends_as_one_chunk_does(
    corpus_dir: Path, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner's own division: the least budget, found by what its refusal says."""
    monkeypatch.setattr("surf2vec.trainer.training.preparation.private_bytes", lambda: 0)
    job = make_job(corpus_dir, tmp_path)
    with pytest.raises(ResourceError, match="the smallest plan needs .* raise --host-memory") as refusal:
        train(dataclasses.replace(job, host_memory_bytes=1))
    needed = parse_bytes(str(refusal.value).split("needs ")[1].split(":")[0]) + 20_000  # the items in one piece
    result = train(dataclasses.replace(job, host_memory_bytes=needed))
    assert result["plan"]["num_chunks"] == 8
    assert result["bytes_read"] > 3 * 400 * 68  # every user comes in once an epoch but the first
    assert_same_bits(tmp_path, undisturbed)


@pytest.mark.parametrize("chunk_partitions", [8, 3])
@pytest.mark.parametrize("objective", ["sampled_softmax", "negative_sampling"])
def test_item_blocks_learn_as_well_as_one_table(
    corpus_dir: Path, tmp_path: Path, chunk_partitions: int, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted topics are found across blocks that never were in memory together."""
    monkeypatch.setattr(PLAN, divided(chunk_partitions, num_blocks=3))
    result = train(make_job(corpus_dir, tmp_path, objective=objective, epochs=8))
    assert result["curve"][-1]["heldout_loss"] < 0.8 * result["curve"][0]["heldout_loss"]
    assert len(open_generation(tmp_path).manifest["items"]["interest"]) == 3
    assert find_topics(tmp_path) > 0.9


@pytest.mark.parametrize("tree", ["huffman", "two_level", "balanced"])
def test_a_tree_in_blocks_learns_as_well_as_a_whole_one(
    corpus_dir: Path, tmp_path: Path, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for num_blocks in (1, 3):
        monkeypatch.setattr(PLAN, divided(3, num_blocks))
        job = make_job(corpus_dir, tmp_path / str(num_blocks), hs=1, tree=tree, tree_branching=4, epochs=8)
        losses.append(train(job)["heldout_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.08)
    one, three = (read_item_table(open_generation(tmp_path / str(n))) for n in (1, 3))
    assert one.outputs.vectors.shape == three.outputs.vectors.shape
    assert np.abs(three.outputs.vectors).sum(axis=1).all()


def test_commits_at_every_micro_partition_change_nothing(corpus_dir: Path, tmp_path: Path, undisturbed: Path) -> None:
    result = train(make_job(corpus_dir, tmp_path, commit_seconds=0))
    assert result["num_commits"] == 4 * 8
    assert_same_bits(tmp_path, undisturbed)


def test_stopped_and_resumed_ends_as_undisturbed(corpus_dir: Path, tmp_path: Path, undisturbed: Path) -> None:
    job = make_job(corpus_dir, tmp_path)
    assert not any(train_until(job, every(9)) for _ in range(3))
    result = train(job)
    assert (len(result["curve"]), result["num_processes"]) == (4 * 8, 4)
    assert_same_bits(tmp_path, undisturbed)


@pytest.mark.parametrize(
    ("settings", "num_blocks"),
    [
        ({"dtype": "bfloat16"}, 1),
        ({"dm": 1, "objective": "negative_sampling", "optimizer": "sgd"}, 1),
        ({"hs": 1, "tree": "two_level"}, 1),
        ({"tile_users": 5}, 1),
        ({"accumulate": 7, "threads": 2}, 1),
        ({"patience": 2, "epochs": 12, "alpha": 0.5}, 1),
        ({}, 3),
        ({"hs": 1}, 3),
        ({"hs": 1, "tree": "two_level"}, 3),
    ],
    ids=str,
)
def test_other_trainings_resume_bit_for_bit_and_in_chunks(
    corpus_dir: Path, tmp_path: Path, settings: dict[str, Any], num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    if num_blocks > 1:  # whose order hangs on the chunks
        monkeypatch.setattr(PLAN, divided(3, num_blocks))
    train(make_job(corpus_dir, whole, **settings))
    monkeypatch.setattr(PLAN, divided(3, num_blocks))
    job, num_stops = make_job(corpus_dir, stopped, commit_seconds=0, **settings), 0
    while not train_until(job, every(7)):
        num_stops += 1
    assert num_stops > 3
    assert_same_bits(stopped, whole)
    one, other = (open_generation(folder).manifest["best"] for folder in (stopped, whole))
    assert bool(one) == ("patience" in settings)
    assert not one or (one["epoch"], one["heldout_loss"]) == (other["epoch"], other["heldout_loss"])


def test_early_stopping_ends_with_the_best_epoch(corpus_dir: Path, tmp_path: Path) -> None:
    """A learning rate that is far too high: the held-out loss soon rises."""
    job = make_job(corpus_dir, tmp_path, patience=2, epochs=40, alpha=1.0, l2=0.0, item_l2=0.0)
    result = train(job)
    best, last = result["best"], result["stopped_after_epoch"]
    assert last == best["epoch"] + 2 < 40
    assert open_generation(tmp_path).manifest["stage"] == "trained"
    at_best = [p["heldout_loss"] for p in result["curve"] if best["epoch"] - 1 < p["epoch"] <= best["epoch"]]
    after = [p["heldout_loss"] for p in result["curve"] if p["epoch"] > best["epoch"]]
    assert np.mean(at_best) < np.mean(after)
    short = tmp_path / "short"
    schedule = {"epochs": 40, "alpha": 1.0, "l2": 0.0, "item_l2": 0.0}
    assert not train_until(make_job(corpus_dir, short, **schedule), [best["epoch"] * 8])
    assert_same_bits(tmp_path, short)
    assert not (tmp_path / "pinned" / "best.json").exists()
    assert train(job)["generation"] == result["generation"]


def test_a_training_that_got_better_to_the_end_ends_there(corpus_dir: Path, tmp_path: Path) -> None:
    train(make_job(corpus_dir, tmp_path / "plain", epochs=2))
    result = train(make_job(corpus_dir, tmp_path / "patient", epochs=2, patience=5))
    assert result["best"]["epoch"] == 2
    assert result["stopped_after_epoch"] is None
    assert_same_bits(tmp_path / "patient", tmp_path / "plain")


def test_a_log_without_order_weighs_all_tokens_the_same_and_has_no_trail(corpus_dir: Path, tmp_path: Path) -> None:
    """Recency does nothing then, there is no trail, and the log says so."""
    messages: list[str] = []
    shutil.copytree(corpus_dir, tmp_path / "corpus")
    manifest = json.loads((corpus_dir / "manifest.json").read_text())
    (tmp_path / "corpus" / "manifest.json").write_text(json.dumps(manifest | {"has_order": False}))
    corpus_dir = tmp_path / "corpus"
    train(make_job(corpus_dir, tmp_path / "a"), lambda name, values: messages.append(values.get("message", "")))
    train(make_job(corpus_dir, tmp_path / "b", recency=0.0))
    generation = open_generation(tmp_path / "a")
    assert (generation.trail, generation.config.interest_size) == (None, 16)
    with pytest.raises(ConfigError, match=r"train.trail_weight is 1, but the order .* says nothing .*: set it to 0"):
        train(make_job(corpus_dir, tmp_path / "c", parts="trail"))
    assert_same_bits(tmp_path / "a", tmp_path / "b")
    assert any("order of a user's events says nothing" in message for message in messages)


def test_in_blocks_the_newest_tokens_weigh_more(
    corpus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = json.loads((corpus_dir / "manifest.json").read_text())
    dated = tmp_path / "corpus"
    shutil.copytree(corpus_dir, dated)
    (dated / "manifest.json").write_text(json.dumps(manifest | {"undated": False}))
    recencies = []
    for num_blocks in (1, 3):
        monkeypatch.setattr(PLAN, divided(3, num_blocks))
        train(make_job(dated, tmp_path / str(num_blocks), epochs=1, recency=6.0))
        recencies.append(open_generation(tmp_path / str(num_blocks)).manifest["recency"])
    assert recencies == [6.0, 2.0]


def test_other_settings_begin_anew(corpus_dir: Path, tmp_path: Path) -> None:
    train(make_job(corpus_dir, tmp_path, epochs=1))
    train(make_job(corpus_dir, tmp_path, epochs=1, seed=2))
    assert open_generation(tmp_path).generation == 2
    assert open_generation(tmp_path).manifest["config"]["seed"] == 2


def test_an_unfinished_training_is_not_thrown_away(corpus_dir: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        train(make_job(corpus_dir, tmp_path), stop=stop)
    with pytest.raises(ConfigError, match=r"holds this training at 3%: give --resume"):
        train(make_job(corpus_dir, tmp_path), resume=False)


def test_a_loss_that_is_not_finite_stops_before_anything_is_written(
    corpus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(users: Rows, items: Items, work: Any) -> int:
        users.vectors[-1, -1] = np.inf
        return 1

    monkeypatch.setattr("surf2vec.trainer.training.loop.pick_kernel", lambda *_: Kernel("cpu", "a test's", explode))
    with pytest.raises(TrainingError, match=r"no longer finite in epoch 1, micro-partition \d.*lower train.alpha"):
        train(make_job(corpus_dir, tmp_path))
    assert not list(tmp_path.glob("*.safetensors"))


def test_with_a_lower_alpha_the_last_good_generation_is_followed_by_another(corpus_dir: Path, tmp_path: Path) -> None:
    wild = {"optimizer": "sgd", "l2": 10.0, "item_l2": 10.0, "epochs": 2}
    train(make_job(corpus_dir, tmp_path, epochs=1))
    before = (tmp_path / "MANIFEST.json").read_bytes()
    with pytest.raises(TrainingError, match="lower train.alpha"):
        train(make_job(corpus_dir, tmp_path, alpha=10.0, min_alpha=10.0, **wild), resume=False)
    assert (tmp_path / "MANIFEST.json").read_bytes() == before
    train(make_job(corpus_dir, tmp_path, alpha=0.01, min_alpha=0.001, **wild), resume=False)
    assert np.isfinite(open_generation(tmp_path).read_items()).all()


def test_several_threads_train_as_well(corpus_dir: Path, tmp_path: Path, undisturbed: Path) -> None:
    one = open_generation(undisturbed).manifest["curve"]["epoch_sums"]
    train(make_job(corpus_dir, tmp_path, threads=2))
    two = open_generation(tmp_path).manifest["curve"]["epoch_sums"]
    assert two[0] / two[1] == pytest.approx(one[0] / one[1], rel=0.05)


def test_a_store_of_another_version_is_refused(corpus_dir: Path, tmp_path: Path) -> None:
    train(make_job(corpus_dir, tmp_path, epochs=1))
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text())
    del manifest["digest"]
    (tmp_path / "MANIFEST.json").write_text(json.dumps(manifest | {"format_version": 1}))
    with pytest.raises(DamageError, match="is not a manifest of format .* or is of another version.*train again"):
        train(make_job(corpus_dir, tmp_path, epochs=1))
