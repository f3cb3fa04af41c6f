"""What a training is told: one frozen dataclass, checked when it is made.

Names and meanings are gensim's where the concept is the same. The metadata of a field is its title,
description and bounds: they are the help of `python -m trainer`, the form in Prefect's UI and the check below.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.errors import ConfigError


def setting(default: Any, title: str, description: str, **bounds: float) -> Any:
    """A dataclass field with a title, a description and bounds (`ge`, `gt`, `le`, `lt`)."""
    return dataclasses.field(default=default, metadata={"title": title, "description": description, **bounds})


@dataclass(frozen=True)
class TrainConfig:
    """Settings of PV-DBOW with negative sampling. Raises ConfigError when one is out of bounds."""

    vector_size: int = setting(128, "Vector size", "Dimensions of user and item vectors.", ge=1, le=4096)
    epochs: int = setting(30, "Epochs", "Passes over all tokens.", ge=1, le=10_000)
    alpha: float = setting(0.05, "Learning rate", "Learning rate at the first token; falls linearly.", gt=0, le=10)
    min_alpha: float = setting(0.0005, "Final learning rate", "Learning rate at the last token.", ge=0, le=10)
    negative: int = setting(20, "Negatives", "Private negative draws for each token.", ge=1, le=1000)
    ns_exponent: float = setting(
        0.1, "Negative exponent", "Negatives are drawn by count ** this: 1 as counted, 0 uniform.", ge=-1, le=1
    )
    sample: float = setting(
        1e-2, "Subsampling", "Items above this share of all tokens are thinned out at random; 0 keeps all.", ge=0, le=1
    )
    seed: int = setting(1, "Seed", "Every random draw is a function of it.", ge=0, le=2**63 - 1)
    threads: int = setting(0, "Threads", "CPU threads; 0 takes all. One is deterministic.", ge=0, le=1024)
    commit_seconds: float = setting(
        60.0,
        "Commit interval",
        "Seconds of training after which the next micro-partition's end commits.",
        ge=0,
        le=86_400,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_setting(field, getattr(self, field.name))
        if self.min_alpha > self.alpha:
            raise ConfigError(
                f"train.min_alpha is {self.min_alpha:g}, above train.alpha {self.alpha:g}: "
                "the learning rate falls, so lower min_alpha or raise alpha"
            )


def check_setting(field: dataclasses.Field, value: Any) -> None:
    """Raise ConfigError unless `value` is a finite number of the field's type within its bounds."""
    wanted = (int,) if field.type in (int, "int") else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted) or not math.isfinite(value):
        kind = "a whole number" if wanted == (int,) else "a number"
        raise ConfigError(f"train.{field.name} is {value!r}, but it has to be {kind}")
    passes: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
        "ge": ("at least", operator.ge),
        "gt": ("above", operator.gt),
        "le": ("at most", operator.le),
        "lt": ("below", operator.lt),
    }
    for bound, (word, is_within) in passes.items():
        limit = field.metadata.get(bound)
        if limit is not None and not is_within(value, limit):
            raise ConfigError(f"train.{field.name} is {value!r}, but it has to be {word} {limit:g}")


def config_from_dict(values: dict[str, Any]) -> TrainConfig:
    """A TrainConfig from a dictionary; ConfigError names an unknown key and the known ones."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    for key in values:
        if key not in known:
            raise ConfigError(f"train.{key} is no setting; there are: {', '.join(sorted(known))}")
    return TrainConfig(**values)
