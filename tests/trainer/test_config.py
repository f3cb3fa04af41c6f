"""Settings that are wrong, or no good together, are refused by name."""

from typing import Any

import pytest

from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dm": 2}, r"train.dm is 2, but it has to be 0 or 1"),
        ({"dm": True}, r"train.dm is True, but it has to be 0 or 1"),
        ({"objective": "hinge"}, r"train.objective is 'hinge', but it has to be sampled_softmax or negative_sampling"),
        ({"vector_size": 0}, r"train.vector_size is 0, but it has to be at least 1"),
        ({"vector_size": 1}, r"train.vector_size is 1, and train.bias 0.5 takes that coordinate of every user"),
        ({"bias": -0.5}, r"train.bias is -0.5, but it has to be at least 0"),
        ({"negative_weight": 0}, r"train.negative_weight is 0, but it has to be above 0"),
        ({"discount": 1.5}, r"train.discount is 1.5, but it has to be at most 1"),
        ({"alpha": float("nan")}, r"train.alpha is nan, but it has to be a number"),
        ({"ns_exponent": 1.5}, r"at most 1"),
        ({"min_alpha": 0.5}, r"above train.alpha"),
        ({"dm": 1, "accumulate": 2}, r"train.accumulate is 2, but with train.dm = 1 it has to be 1"),
        ({"hs": 1, "accumulate": 2}, r"train.accumulate is 2, but with train.hs = 1 it has to be 1"),
        ({"tile_users": 0}, r"train.tile_users is 0, but it has to be at least 1"),
        ({"dm": "1"}, r"0 or 1"),
    ],
)
def test_what_is_wrong_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "num_lanes"),
    [
        ({}, 32), ({"tile_users": 1}, 1), ({"dm": 1}, 32), ({"objective": "negative_sampling"}, 2), ({"hs": 1}, 1),
        ({"objective": "negative_sampling", "tile_users": 1}, 1),
    ],
)  # fmt: skip
def test_tiles_are_narrow_where_many_users_at_once_would_overshoot(settings: dict[str, Any], num_lanes: int) -> None:
    assert TrainConfig(**settings).num_lanes == num_lanes


def test_an_unknown_setting_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting train.window_size; there are: accumulate, alpha"):
        config_from_dict({"window_size": 5})
