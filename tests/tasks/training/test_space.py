"""New items begin near their section or host; the same items under other numbers give the rotation between two trainings."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from surf2vec.tasks.training.beginning import begin_new_items, find_space_rotations
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import describe_anew, planted_histories, write_corpus

CONFIG = TrainConfig(vector_size=16, epochs=3, threads=1)
KNOWN = [
    "https://a.org/news/1",
    "https://a.org/news/2",
    "https://a.org/shop/1",
    "https://b.org/x",
    "/wiki/one",
    "page7",
]


def train_with_urls(folder: Path, urls: list[str], seed: int = 1) -> tuple[Corpus, Generation]:
    """A corpus whose items have these urls, and its training."""
    histories = planted_histories(60, len(urls), topics=2)
    corpus = write_corpus(folder / "corpus", histories, num_items=len(urls))
    corpus = name_items(corpus, urls)
    train(Job(corpus.folder, folder / "store", TrainConfig(vector_size=16, epochs=3, threads=1, seed=seed), 4 * 10**9))
    return corpus, open_generation(folder / "store")


def name_items(corpus: Corpus, urls: list[str]) -> Corpus:
    pl.DataFrame({"url": urls}).write_parquet(corpus.folder / "vocabulary.parquet")
    return describe_anew(corpus)


def tables_of(new_items: dict[str, dict[str, np.ndarray]]) -> list[np.ndarray]:
    assert {part: list(tables) for part, tables in new_items.items()} == {
        "interest": ["outputs"],
        "trail": ["outputs", "inputs"],
    }
    return [vectors for tables in new_items.values() for vectors in tables.values()]


def test_new_items_begin_at_the_mean_of_their_section_then_of_their_host_then_at_zero(tmp_path: Path) -> None:
    corpus, base = train_with_urls(tmp_path, KNOWN)
    new = ["https://a.org/news/3", "https://a.org/jobs/1", "https://c.org/1", "/wiki/two", "page8", "https://b.org/y"]
    corpus = name_items(corpus, KNOWN + new)
    night = Corpus(corpus.folder, corpus.manifest | {"num_items": len(KNOWN) + len(new)})
    tables = base.read_items(), base.trail.outputs.vectors, base.trail.inputs.vectors
    for vectors, items in zip(tables_of(begin_new_items(night, base)), tables, strict=True):
        np.testing.assert_allclose(vectors[0], items[:2].mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(vectors[1], items[:3].mean(axis=0), rtol=1e-5)
        np.testing.assert_array_equal(vectors[2], 0)
        np.testing.assert_allclose(vectors[3], items[4], rtol=1e-5)
        np.testing.assert_array_equal(vectors[4], 0)
        np.testing.assert_allclose(vectors[5], items[3], rtol=1e-5)


def test_without_new_items_there_is_nothing_to_begin(tmp_path: Path) -> None:
    corpus, base = train_with_urls(tmp_path, KNOWN)
    assert [vectors.shape for vectors in tables_of(begin_new_items(corpus, base))] == [(0, 8)] * 3


def test_the_same_training_under_other_numbers_needs_no_rotation(tmp_path: Path) -> None:
    urls = [f"/page/{n}" for n in range(30)]
    one = train_with_urls(tmp_path / "one", urls)
    renamed = train_with_urls(tmp_path / "two", urls)
    assert [found.cosine for found in find_space_rotations(one, renamed).values()] == pytest.approx([1, 1], abs=1e-5)
    other = train_with_urls(tmp_path / "three", urls, seed=2)
    found, of_trail = find_space_rotations(one, other).values()
    assert (found.num_items, of_trail.num_items) == (30, 60)  # outputs and inputs of the trail turn together
    tables = one[1].trail.outputs.vectors, other[1].trail.outputs.vectors
    assert (
        cosine(tables[0][:, :-2], (tables[1] @ of_trail.matrix)[:, :-2])
        > cosine(tables[0][:, :-2], tables[1][:, :-2]) + 0.1
    )
    np.testing.assert_array_equal((tables[1] @ of_trail.matrix)[:, -2:], tables[1][:, -2:])
    unaligned = cosine(one[1].read_items(), other[1].read_items())
    turned = other[1].read_items() @ found.matrix
    aligned = cosine(one[1].read_items(), turned)
    np.testing.assert_array_equal(turned[:, -1], other[1].read_items()[:, -1])
    assert aligned == pytest.approx(found.cosine, abs=1e-4)
    assert aligned > unaligned + 0.2


def test_items_that_are_not_in_both_are_left_out(tmp_path: Path) -> None:
    one = train_with_urls(tmp_path / "one", [f"/page/{n}" for n in range(20)])
    two = train_with_urls(tmp_path / "two", [f"/page/{n}" for n in range(10, 30)])
    assert find_space_rotations(one, two)["interest"].num_items == 10
    other = train_with_urls(tmp_path / "three", [f"/other/{n}" for n in range(20)])
    np.testing.assert_array_equal(find_space_rotations(one, other)["interest"].matrix, np.eye(8))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The mean cosine of rows without their bias."""
    units = [rows[:, :-1] / np.linalg.norm(rows[:, :-1], axis=1, keepdims=True) for rows in (one, other)]
    return float((units[0] * units[1]).sum(axis=1).mean())
