"""A sharded training's item blocks become one table again, where there is room."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.store.generation import open_generation, read_manifest, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.redivide import join_item_blocks
from tests.roots.store_contents import read_item_table
from tests.trainer.training.stopping import PLAN, divided
from tests.trainer.training.test_loop import corpus_dir, make_job

__all__ = ["corpus_dir"]  # a fixture


def train_in_blocks(corpus_dir: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Job:
    """A store with three item blocks that seems to be of several workers, as of one worker they stay."""
    monkeypatch.setattr(PLAN, divided(8, num_blocks=3))
    job = make_job(corpus_dir, store_dir, **settings)
    train(job)
    manifest = read_manifest(job.store_dir / STORE_MANIFEST)
    manifest["plan"]["sharing"]["mode"] = "sharded"
    write_manifest(job.store_dir, STORE_MANIFEST, manifest)
    return job


@pytest.mark.parametrize("settings", [{}, {"hs": 1, "tree": "two_level"}], ids=str)
def test_the_table_is_what_the_blocks_were(
    corpus_dir: Path, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, said = train_in_blocks(corpus_dir, tmp_path, monkeypatch, **settings), []
    before = open_generation(job.store_dir)
    assert before.num_blocks == 3
    table, users = read_item_table(before), [before.read_users(p) for p in range(8)]
    plain = make_job(corpus_dir, tmp_path)
    join_item_blocks(plain, open_corpus(corpus_dir), lambda _, values: said.append(values["message"]))
    after = open_generation(job.store_dir)
    assert said == [f"the 3 item blocks are one table again, {table.outputs.num_bytes / 1000:.1f} kB"]
    assert after.num_blocks == 1
    assert after.generation == before.generation + 1
    joined = after.map_items()
    np.testing.assert_array_equal(joined.outputs.vectors, table.outputs.vectors)
    np.testing.assert_array_equal(joined.outputs.squares, table.outputs.squares)
    assert len(list(job.store_dir.glob("interest-*"))) == 1
    assert all((after.read_users(p) == users[p]).all() for p in range(8))


def test_without_room_they_stay(corpus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, said = train_in_blocks(corpus_dir, tmp_path, monkeypatch), []
    monkeypatch.setattr("surf2vec.trainer.training.redivide.private_bytes", lambda: 4 * 10**9)
    join_item_blocks(job, open_corpus(corpus_dir), lambda _, values: said.append(values["message"]))
    assert "the items stay in 3 blocks: in one they need 4.1 GB, and the budget is 4.0 GB" in said[0]
    assert open_generation(job.store_dir).num_blocks == 3
