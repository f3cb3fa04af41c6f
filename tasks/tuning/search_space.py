"""Where `surf2vec tune` searches: the settings that matter to a training, their bounds, and which to try next.

What to try next is a function of the trials that ended and of a seed (Optuna's multivariate TPE, begun anew each time): a
search that was killed and goes on makes the trials that the undisturbed one would have made. Optuna keeps nothing itself.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution, IntDistribution

from trainer.config import MAX_DRAWS, TrainConfig
from trainer.draws import epoch_key
from trainer.errors import ConfigError

Setting = int | float
Space = dict[str, FloatDistribution | IntDistribution]

VECTOR_SIZE_STEP = 32
ZERO_IS_HIGH = ("sample", "recency")  # 0 turns these off, which is what ever higher values come to
_EXPONENT_FROM = {"sampled_softmax": 0.0, "negative_sampling": -0.5}
_STARTUP_TRIALS = 10
_WANTED_BEST = 5  # trials that count as good when importances are estimated

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Point:
    """A trial that ended: its settings, and what it reached (higher is better)."""

    settings: dict[str, Setting]
    value: float


def search_space(
    config: TrainConfig, counts: NDArray[np.int64], is_dated: bool, max_vector_size: int | None = None
) -> Space:
    """The settings to search and their bounds, which always take in those of `config`; counts int64[V].

    Only settings that act are searched: `window` with context, `negative`, `ns_exponent` and `item_l2` without a tree,
    `discount` with sampled softmax, `recency` where the log has times, `sample` between the share of the average and of
    the most frequent item (above, it thins nothing; below, it throws half the log away). `vector_size` only up to a
    `max_vector_size` that is asked for: more dimensions need more data than a sample has, so a sample alone would choose too few.
    """
    space: Space = {
        "alpha": FloatDistribution(0.02, 0.5, log=True),
        "epochs": IntDistribution(3, 30, log=True),
        "l2": FloatDistribution(0.02, 4.0, log=True),
    }
    if not config.hs:
        fewest = config.share_negatives if config.objective == "negative_sampling" else 1  # fewer are refused
        space["negative"] = IntDistribution(max(5, fewest), max(60, fewest), log=True)
        space["ns_exponent"] = FloatDistribution(_EXPONENT_FROM[config.objective], 1.0)
        space["item_l2"] = FloatDistribution(0.01, 0.5, log=True)
        if config.objective == "sampled_softmax":
            space["discount"] = FloatDistribution(0.0, 0.7)
    if config.has_inputs:
        space["window"] = IntDistribution(1, 10, log=True)
    if is_dated:
        space["recency"] = FloatDistribution(0.5, 50.0, log=True)
    space = {name: _widened(bounds, getattr(config, name)) for name, bounds in space.items()}
    low, high = max(1e-5, 1 / len(counts)), min(0.1, counts.max() / max(1, counts.sum()))
    if high > 2 * low:
        space["sample"] = FloatDistribution(_rounded(low), _rounded(high), log=True)
    if max_vector_size is not None:
        if config.vector_size > max_vector_size or max_vector_size < VECTOR_SIZE_STEP:
            least = max(config.vector_size, VECTOR_SIZE_STEP)
            raise ConfigError(
                f"--max-vector-size {max_vector_size} is below {least}: raise it, or lower train.vector_size "
                f"(now {config.vector_size}; the least that is searched is {VECTOR_SIZE_STEP})"
            )
        highest = max_vector_size // VECTOR_SIZE_STEP * VECTOR_SIZE_STEP
        space["vector_size"] = IntDistribution(VECTOR_SIZE_STEP, highest, step=VECTOR_SIZE_STEP)
    return space


def propose(space: Space, done: Sequence[Point], seed: int) -> dict[str, Setting]:
    """The settings of the next trial, the same for the same trials before; of numbers, three digits."""
    study = _study(space, done, seed)
    proposed = study.ask(dict(space)).params
    return {
        name: value if isinstance(value, int) else _clipped(space[name], _rounded(value))
        for name, value in proposed.items()
    }


def find_importances(space: Space, done: Sequence[Point]) -> dict[str, float]:
    """How much each setting had to do with being among the best trials, shares of 1, the most important first."""
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(
        target_quantile=min(0.5, max(0.1, _WANTED_BEST / len(done)))
    )
    found = optuna.importance.get_param_importances(_study(space, done, 0), evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def apply_settings(base: TrainConfig, settings: dict[str, Setting]) -> TrainConfig:
    """`base` with these settings; min_alpha keeps its ratio to alpha, and draws stay within what a token may have."""
    if all(getattr(base, name) == value for name, value in settings.items()):
        return base
    changed = dict(settings)
    changed["min_alpha"] = _rounded(changed["alpha"] * base.min_alpha / base.alpha)
    if base.dbow_words and not base.hs:
        changed["negative"] = min(changed["negative"], MAX_DRAWS // (2 * changed["window"] + 1) - 1)
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]


def _study(space: Space, done: Sequence[Point], seed: int) -> optuna.Study:
    """A study in memory that knows the trials that ended."""
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=_STARTUP_TRIALS, multivariate=True, seed=epoch_key(seed, len(done)) % 2**32
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for point in done:
        params = {name: _nearest(name, bounds, point.settings[name]) for name, bounds in space.items()}
        study.add_trial(optuna.create_trial(params=params, distributions=dict(space), value=point.value))
    return study


def _nearest(name: str, bounds: FloatDistribution | IntDistribution, value: Setting) -> Setting:
    """Where in the space a setting stands that may lie outside, as 0 does of what is searched by its logarithm."""
    if value == 0 and name in ZERO_IS_HIGH:
        return bounds.high
    clipped = _clipped(bounds, value)
    if isinstance(bounds, IntDistribution) and bounds.step > 1:
        return bounds.low + round((clipped - bounds.low) / bounds.step) * bounds.step
    return clipped


def _widened(bounds: FloatDistribution | IntDistribution, value: Setting) -> FloatDistribution | IntDistribution:
    """The bounds, with `value` inside; 0 has no place where the logarithm is searched."""
    if bounds.log and value == 0:
        return bounds
    return type(bounds)(min(bounds.low, value), max(bounds.high, value), log=bounds.log)  # type: ignore[arg-type]


def _clipped(bounds: FloatDistribution | IntDistribution, value: Setting) -> Setting:
    return min(max(value, bounds.low), bounds.high)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
