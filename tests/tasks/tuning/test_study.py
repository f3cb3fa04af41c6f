"""Where a search looks: only settings that act, bounds that take in what was given, proposals that are always valid."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import IntDistribution

from surf2vec.tasks.tuning.study import apply_settings, find_importances, propose, search_space
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError

COUNTS = np.array([500, 100, *[10] * 100], dtype=np.int64)
ALWAYS = {"alpha", "epochs", "l2"}
DRAWN = ALWAYS | {"negative", "ns_exponent", "item_l2"}
SAMPLED = DRAWN | {"discount"}


def ended(settings: dict[str, Any], mrr: float) -> dict[str, Any]:
    """A trial as a search keeps it."""
    return {"settings": settings, "metrics": {"mrr": mrr}}


@pytest.mark.parametrize(
    ("config", "has_order", "wanted"),
    [
        (TrainConfig(), False, SAMPLED | {"sample"}),
        (TrainConfig(), True, SAMPLED | {"sample"}),
        (TrainConfig(recency=3.0), True, SAMPLED | {"sample", "recency"}),
        (TrainConfig(recency=3.0), False, SAMPLED | {"sample"}),
        (TrainConfig(objective="negative_sampling"), False, DRAWN | {"sample"}),
        (TrainConfig(dm=1), False, SAMPLED | {"sample", "window"}),
        (TrainConfig(hs=1, recency=3.0), True, ALWAYS | {"sample", "recency"}),
    ],
)
def test_only_settings_that_act_are_searched(config: TrainConfig, has_order: bool, wanted: set[str]) -> None:
    assert set(search_space(config, COUNTS, has_order)) == wanted


def test_bounds_take_in_what_was_given() -> None:
    space = search_space(TrainConfig(alpha=2.0, negative=3, epochs=100, l2=0.0), COUNTS, False)
    assert (space["alpha"].low, space["alpha"].high) == (0.02, 2.0)
    assert (space["negative"].low, space["negative"].high) == (3, 60)
    assert (space["epochs"].low, space["epochs"].high) == (3, 100)
    assert (space["l2"].low, space["l2"].high) == (0.02, 4.0)
    assert space["ns_exponent"].low == 0
    assert search_space(TrainConfig(objective="negative_sampling"), COUNTS, False)["ns_exponent"].low == -0.5


def test_sample_is_searched_from_the_average_to_the_most_frequent_item_if_they_differ() -> None:
    bounds = search_space(TrainConfig(), COUNTS, False)["sample"]
    assert (bounds.low, bounds.high) == (0.0098, 0.1)
    assert "sample" not in search_space(TrainConfig(), np.full(50, 7), False)


def test_vector_size_is_searched_only_up_to_a_size_that_is_asked_for() -> None:
    space = search_space(TrainConfig(vector_size=40), COUNTS, False, 100)
    assert space["vector_size"] == IntDistribution(32, 96, step=32)
    assert propose(space, [ended({name: getattr(TrainConfig(vector_size=40), name) for name in space}, 0.5)], 1)
    for max_vector_size in (16, 96):
        with pytest.raises(ConfigError, match=f"--max-vector-size {max_vector_size} is below 128"):
            search_space(TrainConfig(), COUNTS, False, max_vector_size)


def test_min_alpha_keeps_its_ratio_and_what_was_given_stays_as_it_is() -> None:
    base = TrainConfig(alpha=0.1, min_alpha=0.0123456)
    assert apply_settings(base, {"alpha": 0.1}) is base
    assert apply_settings(base, {"alpha": 0.2}).min_alpha == 0.0247


def test_the_search_finds_the_planted_optimum_and_names_what_mattered() -> None:
    base = TrainConfig()
    space = search_space(base, COUNTS, False)
    done = [ended({name: getattr(base, name) for name in space}, -1.0)]
    while len(done) < 40:
        proposed = propose(space, done, 1)
        done.append(ended(proposed, -abs(np.log(proposed["alpha"] / 0.05))))
    best = max(done, key=lambda trial: trial["metrics"]["mrr"])
    assert abs(np.log(best["settings"]["alpha"] / 0.05)) < 0.1
    assert next(iter(find_importances(space, done))) == "alpha"


@settings(max_examples=30)
@given(
    base=st.builds(
        TrainConfig,
        objective=st.sampled_from(["sampled_softmax", "negative_sampling"]),
        dm=st.just(0),
        window=st.integers(1, 30),
        negative=st.integers(1, 60),
        alpha=st.floats(0.02, 10),
        l2=st.floats(0, 10),
        recency=st.sampled_from([None, 0.0, 1e-3, 3.0, 1e6]),
        sample=st.floats(0, 1),
    ),
    seed=st.integers(0, 2**63 - 1),
    values=st.lists(st.floats(0, 1), max_size=14),
)
def test_every_proposal_is_a_valid_configuration_and_the_same_again(
    base: TrainConfig, seed: int, values: list[float]
) -> None:
    space = search_space(base, COUNTS, True)
    done = [ended({name: getattr(base, name) for name in space}, 0.1)]
    for value in values:
        proposed = propose(space, done, seed)
        assert proposed == propose(space, done, seed)
        assert all(space[name].low <= proposed[name] <= space[name].high for name in space)
        config = apply_settings(base, proposed)
        assert config == dataclasses.replace(config)  # checks itself
        done.append(ended({name: getattr(config, name) for name in space}, value))
