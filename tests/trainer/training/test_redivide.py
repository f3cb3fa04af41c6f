"""A training goes on in other item blocks, and with another number of workers, than it began with."""

import dataclasses
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from surf2vec.trainer.store.generation import open_generation, read_manifest, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST, items_of
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import open_pinned
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.record import Load, Record, read_record, restart_epoch
from surf2vec.trainer.training.redivide import epochs_done
from tests.roots.store_contents import find_topics, read_item_table
from tests.servers.torchrun import PATIENCE_SECONDS, read_position, run_workers, start_machine, start_workers
from tests.trainer.training.stopping import PLAN, divided, train_until
from tests.trainer.training.test_loop import corpus_dir, make_job

__all__ = ["corpus_dir"]  # a fixture
EPOCHS = 12


@pytest.mark.parametrize("settings", [{}, {"hs": 1}, {"hs": 1, "tree": "two_level"}], ids=str)
@pytest.mark.parametrize("stopped_at", [4, 20, 30], ids=["some blocks not begun", "all begun", "in a later epoch"])
def test_blocks_are_divided_anew(
    corpus_dir: Path, tmp_path: Path, settings: dict[str, Any], stopped_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAN, divided(3, num_blocks=3))
    job = make_job(corpus_dir, tmp_path, **settings)
    assert not train_until(job, [stopped_at])
    generation = open_generation(tmp_path)
    counts = open_corpus(corpus_dir).count_training_tokens()
    one = ItemBlocks(job.config, counts, 1)
    table = items_of(generation.gather_items(None, one.num_outputs(0)).arrays).outputs
    entries = enumerate(generation.manifest["items"]["interest"])
    trained = {block: generation.read_item_block(block) for block, entry in entries if entry}
    assert len(trained) == (2 if stopped_at == 4 else 3)
    if len(trained) == 3:
        np.testing.assert_array_equal(table.vectors, read_item_table(generation).outputs.vectors)
    before = ItemBlocks(job.config, counts, 3)
    for block in set(range(3)) - set(trained):
        rows = before.rows(block)
        assert rows is not None
        assert not table.vectors[rows[before.num_shared_rows :]].any(), "they begin at zero"
    for num_blocks in (2, 5):
        blocks = ItemBlocks(job.config, counts, num_blocks)
        for block in range(num_blocks):
            rows = blocks.rows(block)
            assert rows is not None
            image = generation.gather_items(rows, blocks.num_outputs(block))
            np.testing.assert_array_equal(image.arrays["rows"], rows)
            np.testing.assert_array_equal(image.arrays["outputs"], table.vectors[rows])
            np.testing.assert_array_equal(image.arrays["output_squares"], table.squares[rows])


def test_epochs_are_counted_by_positions() -> None:
    manifest = {"position": 37, "num_positions": 120}
    assert epochs_done(manifest, 10) == (3, pytest.approx(1 / 12))
    assert epochs_done(manifest | {"position": 36}, 10) == (3, 0)
    assert epochs_done({"position": 0}, 10) == (0, 0), "a night's beginning"


def test_what_each_worker_did_is_added_up_for_others() -> None:
    record = Record(
        position=37, train_seconds=5, bytes_read=7, loads=[Load(bytes_read=7), Load(bytes_read=3, peak_bytes=9)]
    )
    record.curve.points = [{"epoch": 2.9}, {"epoch": 3.0}, {"epoch": 3.1}]
    record.curve.epoch_sums = [1.0, 1, 1.0, 1]
    manifest = restart_epoch(record.to_json() | {"stage": "training", "user": 1}, epoch=3)
    first, third = read_record(manifest, 0), read_record(manifest, 2)
    assert manifest["user"] == 1
    assert (first.bytes_read, first.peak_bytes, first.train_seconds, first.loads) == (10, 9, 5, [])
    assert (third.bytes_read, third.train_seconds) == (0, 5)
    assert [point["epoch"] for point in first.curve.points] == [2.9, 3.0]
    assert first.curve.epoch_losses() == {"loss": None, "heldout_loss": None}


@pytest.mark.long
def test_two_workers_go_on_with_what_one_began_and_three_with_that(
    corpus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(corpus_dir, tmp_path / "store", epochs=EPOCHS, sharing="sharded")
    with monkeypatch.context() as patched:
        patched.setattr(PLAN, divided(3, num_blocks=3))
        assert not train_until(job, [3 * 8 * 2 + 5])
    left = open_generation(job.store_dir)
    with start_workers(
        dataclasses.replace(job, config=dataclasses.replace(job.config, commit_seconds=0)), 2
    ) as process:
        while not 4 * 5 <= read_position(job.store_dir) != left.position:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        process.terminate()
        said = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert "workers were 1 and are 2 now: epoch 3, of which 21% was done, starts again" in said
    two = open_generation(job.store_dir).manifest
    assert len(two["loads"]) == 2
    assert two["bytes_read"] >= left.manifest["bytes_read"]
    told = run_workers(job, 3)
    assert len(told["workers"]) == 3
    assert told["num_processes"] == 3
    assert open_generation(job.store_dir).manifest["stage"] == "trained"
    beside = make_job(corpus_dir, tmp_path / "beside", epochs=EPOCHS)
    assert told["heldout_loss"] < 1.1 * train(beside)["heldout_loss"]
    assert find_topics(job.store_dir) > 0.9


@pytest.mark.long
def test_workers_return_to_the_best_epoch_of_the_one_before_them(
    corpus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early stopping ends with a generation that was divided otherwise."""
    job = make_job(
        corpus_dir, tmp_path / "store", sharing="replicated", epochs=60, alpha=1.0, patience=12, tile_users=1
    )
    with monkeypatch.context() as patched:
        patched.setattr(PLAN, divided(3, num_blocks=3))
        assert not train_until(job, [3 * 8 * 10])
    best = open_pinned(job.store_dir, "best")
    assert best.position < 3 * 8 * 10
    kept = best.read_items()
    manifest = read_manifest(job.store_dir / STORE_MANIFEST)
    manifest["best"]["heldout_loss"] = 0.1  # which no other epoch reaches
    write_manifest(job.store_dir, STORE_MANIFEST, manifest)
    told = run_workers(job, 2)
    ended = open_generation(job.store_dir)
    assert told["best"]["generation"] == best.generation
    assert told["stopped_after_epoch"] == told["best"]["epoch"] + 12
    assert (ended.num_blocks, ended.manifest["num_blocks"], ended.manifest["recency"]) == (
        3,
        3,
        best.manifest["recency"],
    )
    np.testing.assert_array_equal(ended.read_items(), kept)


@pytest.mark.long
def test_when_a_machine_is_lost_the_other_goes_on(corpus_dir: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    job = make_job(corpus_dir, tmp_path / "store", epochs=1500, sharing="sharded", commit_seconds=0.2)
    with start_machine(job, port) as first, start_machine(job, port) as second:
        while read_position(job.store_dir) < 4 * 2:
            assert (first.poll(), second.poll()) == (None, None)
            time.sleep(0.05)
        assert len(read_manifest(job.store_dir / STORE_MANIFEST)["loads"]) == 2
        left, lost = (first, second) if is_listening(first, port) else (second, first)
        lost.kill()
        told, said = left.communicate(timeout=PATIENCE_SECONDS)
        lost.communicate()
    assert left.returncode == 0, said
    assert "workers were 2 and are 1 now" in said
    assert "workers" not in json.loads(told.splitlines()[-1])
    assert open_generation(job.store_dir).manifest["stage"] == "trained"
    assert find_topics(job.store_dir) > 0.9


def is_listening(process: subprocess.Popen[str], port: int) -> bool:
    connections = psutil.Process(process.pid).net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)
