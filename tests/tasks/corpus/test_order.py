"""Whether the order of events says anything, on histories in order, the same histories shuffled, and too few of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.corpus.order import LIMIT, has_order, measure_order
from surf2vec.trainer.store.tokens import Corpus, Histories
from tests.benchmarks.logs import LOGS, UNORDERED_LOGS, make_corpus_of
from tests.data.corpora import write_corpus

NUM_ITEMS = 50


def walk(num_users: int, length: int = 8, seed: int = 0) -> dict[str, list[int]]:
    """Users who walk along a ring of pages, one or two pages on at a time."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, 3, (num_users, length))
    pages = (rng.integers(0, NUM_ITEMS, (num_users, 1)) + np.cumsum(steps, axis=1)) % NUM_ITEMS
    return {f"user-{number}": row.tolist() for number, row in enumerate(pages)}


def shuffled(histories: dict[str, list[int]], seed: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(seed)
    return {user: rng.permutation(pages).tolist() for user, pages in histories.items()}


def permuted(part: Histories, rng: np.random.Generator) -> Histories:
    """The histories with the tokens of each user in a random order."""
    user = np.repeat(np.arange(part.num_users), np.diff(part.offsets))
    return replace(part, tokens=part.tokens[np.lexsort((rng.random(len(user)), user))])


def make(folder: Path, histories: dict[str, list[int]]) -> Corpus:
    return write_corpus(folder, histories, partitions=4, num_items=NUM_ITEMS)


def numbered(num_users: int) -> dict[str, list[int]]:
    """A ground truth without users: each history is in the order of the page numbers."""
    rng = np.random.default_rng(1)
    return {f"user-{n}": np.sort(rng.choice(NUM_ITEMS, 8, replace=False)).tolist() for n in range(num_users)}


ROUND = {f"user-{n}": [(n + step) % NUM_ITEMS for step in range(8)] for n in range(200)}
"""Everybody goes from each page to the next one: the difference is the same for all users."""


@pytest.mark.parametrize("histories", [walk(200), ROUND, numbered(400)], ids=["a walk", "without chance", "by number"])
def test_histories_with_an_order(tmp_path: Path, histories: dict[str, list[int]]) -> None:
    assert has_order(make(tmp_path / "corpus", histories))


@pytest.mark.parametrize("seed", range(5))
def test_the_same_pages_shuffled_have_none(tmp_path: Path, seed: int) -> None:
    """Users still see pages that belong together, so that pairs repeat: but not more often side by side."""
    assert not has_order(make(tmp_path / "corpus", shuffled(walk(200), seed)))


@pytest.mark.parametrize("histories", [{"ann": [1, 2]}, {"ann": [1, 2, 3], "bob": [1, 2, 3]}, {"ann": [4, 4, 4, 4]}])
def test_too_little_to_tell_is_no_order(tmp_path: Path, histories: dict[str, list[int]]) -> None:
    assert not has_order(make(tmp_path / "corpus", histories))


def test_a_pair_is_known_from_the_other_half_of_the_users(tmp_path: Path) -> None:
    """By hand: the first user knows the pairs 1-2, 2-3, 3-4; the second meets 3 after 2 and 4 after 3, as the first does."""
    corpus = write_corpus(tmp_path / "corpus", {"ann": [1, 2, 3, 4], "bob": [9, 2, 3, 4]}, partitions=1, num_items=10)
    [difference] = measure_order([corpus.read(0)], 10)
    assert difference.tolist() == [1.0, 1.0]  # both pairs with the page before are known, none with a page before that


@pytest.mark.slow
@pytest.mark.parametrize("log", [*LOGS, pytest.param("msnbc", marks=pytest.mark.long)])
def test_real_logs_have_an_order_and_none_once_it_is_permuted(data_dir: Path, tmp_path: Path, log: str) -> None:
    """Also a log of 17 pages, where most pairs are known; but not check-ins in a random order."""
    corpus = make_corpus_of(log, data_dir, tmp_path)
    assert has_order(corpus) == (log not in UNORDERED_LOGS)
    part, rng = corpus.read(0), np.random.default_rng(1)
    for _ in range(3):
        differences = np.concatenate(measure_order([permuted(part, rng)], corpus.num_items))
        assert abs(differences.sum()) < LIMIT * float((differences**2).sum()) ** 0.5
