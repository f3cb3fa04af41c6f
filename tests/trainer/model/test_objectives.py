"""The noise distribution and the thinning of frequent items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model.objectives import RANGE_32, alias_table, block_sampling, keep_thresholds, make_sampling


def probabilities(thresholds: np.ndarray, aliases: np.ndarray) -> np.ndarray:
    """What an alias table draws, worked out from it."""
    own = thresholds / RANGE_32
    drawn = own.copy()
    np.add.at(drawn, aliases, 1 - own)
    return drawn / len(own)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300))
def test_alias_table_draws_by_weight(weights: list[float]) -> None:
    array = np.array(weights)
    np.testing.assert_allclose(probabilities(*alias_table(array)), array / array.sum(), atol=1e-9)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0])
def test_alias_table_on_a_zipf_of_100_000_items(exponent: float) -> None:
    weights = (1e6 / np.arange(1, 100_001)) ** exponent
    np.testing.assert_allclose(probabilities(*alias_table(weights)), weights / weights.sum(), rtol=1e-6, atol=1e-12)


def test_an_item_without_training_tokens_is_drawn_as_if_it_had_one() -> None:
    sampling = make_sampling(np.array([0, 1, 2]), TrainConfig(ns_exponent=1.0))
    np.testing.assert_allclose(probabilities(sampling.thresholds, sampling.aliases), [0.25, 0.25, 0.5], atol=1e-9)


def test_subsampling_keeps_as_gensim_does() -> None:
    counts = np.array([9000, 900, 100])
    threshold = 0.01 * counts.sum()
    gensim = np.minimum((np.sqrt(counts / threshold) + 1) * (threshold / counts), 1.0)
    np.testing.assert_allclose(keep_thresholds(counts, int(counts.sum()), 0.01) / RANGE_32, gensim, atol=1e-9)


def test_sample_zero_keeps_all() -> None:
    assert (keep_thresholds(np.array([10**9, 1]), 10**9 + 1, 0) == RANGE_32).all()


@pytest.mark.parametrize("discount", [0.0, 0.25])
def test_the_correction_is_the_log_of_the_drawing_probability_less_the_discount(discount: float) -> None:
    """Only sampled softmax needs it; with it the scores rank by discounted probability whatever the exponent."""
    counts = np.array([1, 10, 100])
    config = TrainConfig(ns_exponent=0.5, discount=discount)
    sampling = make_sampling(counts, config)
    drawn = probabilities(sampling.thresholds, sampling.aliases)
    expected = np.log(drawn) - discount * np.log(counts)
    np.testing.assert_allclose(np.diff(sampling.corrections), np.diff(expected), atol=1e-6)
    other = make_sampling(counts, TrainConfig(ns_exponent=0.5, objective="negative_sampling"))
    assert (other.corrections == 0).all()


def test_the_tables_of_an_item_block_are_those_of_its_items() -> None:
    """Weights among its own items, corrections and thinning are those of all; the shared item 0 has half of its weight here."""
    counts = np.array([900, 50, 5, 40, 5], dtype=np.int64)
    config, rows = TrainConfig(sample=0.01, ns_exponent=0.5), np.array([0, 1, 3], dtype=np.uint32)
    whole, block = make_sampling(counts, config), block_sampling(counts, config, rows, 1, 2)
    assert block.keep.tolist() == [*whole.keep[rows].tolist(), 0]
    np.testing.assert_allclose(np.diff(block.corrections), np.diff(whole.corrections[rows]), rtol=1e-5)
    weights = np.sqrt([900, 50, 40]) / [2, 1, 1]
    drawn = probabilities(block.thresholds, block.aliases)
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=1e-6)
