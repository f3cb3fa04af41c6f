"""A generation without some rows: all others are the same bits, also those that a delta changed."""

from pathlib import Path

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.generation import Generation, next_generation, open_generation, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST, Delta, read_rows
from surf2vec.trainer.store.writer import Writer, erase_rows, remove_unreferenced
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    """Trained, with a delta for micro-partition 0: rows 1 and 2 changed, and a row more."""
    corpus = write_corpus(tmp_path / "corpus", planted_histories(30), partitions=2)
    config = TrainConfig(vector_size=8, epochs=1, threads=1)
    train(Job(corpus.folder, tmp_path / "store", config, 4 * 10**9))
    made = open_generation(tmp_path / "store")
    num_rows = len(read_rows(made.folder, made.manifest["users"]["0"]).squares)
    writer = Writer(made.folder, next_generation(made.folder), made.manifest)
    places = np.array([1, 2, num_rows], dtype=np.uint32)
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.write_delta(0, Delta(places, Rows(vectors, np.array([7, 8, 9], dtype=np.float32))))
    return writer.commit(made.manifest)


def test_rows_go_out_of_files_and_deltas(generation: Generation) -> None:
    entries = generation.manifest["users"]
    before = [read_rows(generation.folder, entries[str(p)]) for p in range(2)]
    num_users = [len(rows.squares) for rows in before]
    going = {0: np.array([0, 2, num_users[0] - 1])}
    number = next_generation(generation.folder)
    users = erase_rows(generation, going, num_users, number)
    write_manifest(generation.folder, STORE_MANIFEST, generation.manifest | {"users": users, "generation": number})
    remove_unreferenced(generation.folder)
    after = open_generation(generation.folder)
    left = read_rows(after.folder, after.manifest["users"]["0"])
    assert left.vectors.tobytes() == np.delete(before[0].vectors, going[0], axis=0).tobytes()
    assert left.squares.tolist() == np.delete(before[0].squares, going[0]).tolist()
    assert left.vectors[0].tolist() == [0, 1, 2, 3]
    assert after.manifest["users"]["1"] == entries["1"]
    assert "delta" not in after.manifest["users"]["0"]
    assert len(list(after.folder.glob("users-*"))) == 2
    assert not list(after.folder.glob("delta-*"))


def test_a_micro_partition_of_which_nobody_is_left_has_no_file(generation: Generation) -> None:
    num_users = [len(read_rows(generation.folder, generation.manifest["users"][str(p)]).squares) for p in range(2)]
    users = erase_rows(generation, {1: np.arange(num_users[1])}, num_users, next_generation(generation.folder))
    assert set(users) == {"0"}


def test_rows_of_another_corpus_are_refused(generation: Generation) -> None:
    with pytest.raises(DamageError, match="has 14 rows where its corpus has 3 users|do not belong together"):
        erase_rows(generation, {0: np.array([0])}, [3, 3], next_generation(generation.folder))
