"""A search for settings: its bounds, the choice of the next trial, and its record.

The most important training settings are searched within bounds. The next trial is a function of the ended trials and a seed
(Optuna's multivariate TPE, created for each trial). A search that was killed therefore continues with the same trials.
The record, ROOT/tune/<study-id>.json, contains the ended trials and is replaced atomically after each. Each trial is an MLflow
run below the run of its search; a trial that a kill kept out of MLflow is logged later. The winner becomes a configuration
file.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution, IntDistribution

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.evaluation.measures import measure_gain
from surf2vec.tasks.registry import mlflow_runs
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.failures import check_out
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.system.files import digest_json, read_json, replace_file, write_manifest_json
from surf2vec.trainer.training.job import RESULT_NEUTRAL

_FORMAT_VERSION = 4
Setting = int | float
Bounds = FloatDistribution | IntDistribution
Space = dict[str, Bounds]
Trial = dict[str, Any]  # an ended trial, with `settings` and `metrics`

VECTOR_SIZE_STEP = 32
ZERO_IS_HIGH = ("sample", "recency")  # 0 turns these off, as ever higher values would
_EXPONENT_FROM = {"sampled_softmax": 0.0, "negative_sampling": -0.5}
_STARTUP_TRIALS = 10
_WANTED_BEST = 5  # trials that count as good when importances are estimated

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Search:
    """The request of `surf2vec tune`. No trial begins after `seconds`.

    Raises ConfigError for an invalid file, ResourceError if the file's folder cannot be written to.
    """

    trials: int
    out: Path
    train: TrainConfig
    publish: PublishConfig
    memory_bytes: int
    command: str
    max_vector_size: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_out(self.out, "TOML", "tuned.toml")


class Study:
    """One search, identified by its corpus, settings and bounds, but not by the number of trials.

    trials: the ended ones: settings, config, metrics, gain, failure or None, ended_at_ms, and once logged mlflow_run_id.
    """

    def __init__(self, root: Root, search: Search, manifest: dict[str, Any], window_id: str, space: Space) -> None:
        """manifest: of the corpus that the trials train, made of the corpus of window_id."""
        self.root, self.search, self.space = root, search, space
        base = {name: value for name, value in dataclasses.asdict(search.train).items() if name not in RESULT_NEUTRAL}
        bounds = {name: [one.low, one.high] for name, one in space.items()}
        identity: Trial = {"format_version": _FORMAT_VERSION, "base": base, "bounds": bounds}
        identity |= {"window_id": window_id}
        self.name = f"tune-{digest_json(identity)[:12]}"
        self.path = root.path / "tune" / f"{self.name}.json"
        self.record: dict[str, Any] = read_json(self.path) if self.path.exists() else identity | {"trials": []}
        self.trials: list[Trial] = self.record["trials"]
        self.corpus = {name: manifest[name] for name in ("num_users", "num_tokens", "num_held_out")}
        self.uri = registry_uri(root, search.publish)

    @property
    def best_trial(self) -> int:
        """The number of the trial with the best MRR, counted from 1; the first of equals."""
        return 1 + max(range(len(self.trials)), key=lambda i: self.trials[i]["metrics"]["mrr"])

    def add(self, trial: Trial, reciprocals: NDArray[np.float64]) -> None:
        """Record an ended trial in the record and in MLflow; reciprocals float64[m]: 1 / rank of each held-out item.

        Its gain over the first trial is measured on the same users: its standard error is that of their differences.
        """
        if not self.trials:
            with replace_file(self.path.with_suffix(".npy")) as temporary, open(temporary, "wb") as file:
                np.save(file, reciprocals, allow_pickle=False)
        gain, error = measure_gain(reciprocals - np.load(self.path.with_suffix(".npy"), allow_pickle=False))
        self.trials.append(trial | {"gain": {"mrr": gain, "standard_error": error}})
        write_manifest_json(self.path, self.record)
        self.log_trials()

    @cached_property
    def mlflow_run_id(self) -> str:
        """The MLflow run of the search; opened at the first use."""
        return self._open_run("", {"window_id": self.record["window_id"]}, self.record["base"], self.corpus)

    def log_trials(self) -> None:
        """Log the trials that are not in MLflow yet, below the search's run."""
        tags = {mlflow_runs.PARENT_TAG: self.mlflow_run_id}
        for number, trial in enumerate(self.trials, start=1):
            if "mlflow_run_id" not in trial:
                run_id = self._open_run(f"-{number:03d}", tags, trial["config"], {})
                points = _points(trial["metrics"], trial["ended_at_ms"])
                mlflow_runs.log_run(self.uri, run_id, points, status="FAILED" if trial["failure"] else "FINISHED")
                trial["mlflow_run_id"] = run_id
                write_manifest_json(self.path, self.record)

    def end_runs(self, result: dict[str, Any]) -> None:
        """Log the winner and the record to the search's run, and end it."""
        metrics = {f"default_{name}": value for name, value in result["metrics"]["default"].items()}
        metrics |= result["metrics"]["best"]
        points = _points(metrics, self.trials[-1]["ended_at_ms"])
        files, documents = [self.search.out], {"tune.json": self.record}
        mlflow_runs.log_run(self.uri, self.mlflow_run_id, points, files, documents, status="FINISHED")

    def _open_run(self, suffix: str, tags: dict[str, str], config: dict[str, Any], params: dict[str, Any]) -> str:
        params = {f"train.{name}": value for name, value in config.items()} | params
        tags = tags | {"study_id": self.name}
        return mlflow_runs.open_run(self.root, self.search.publish, f"{self.name}{suffix}", tags, params)


def _points(metrics: dict[str, float], at_ms: int) -> list[mlflow_runs.Metric]:
    return [mlflow_runs.Metric(name, float(value), at_ms, 0) for name, value in metrics.items()]


def write_config(study: Study, result: dict[str, Any]) -> None:
    """Write the winner as a TOML file: a [train] table of the settings that differ from the defaults, and their origin.

    Raises ResourceError if the file cannot be written.
    """
    out, corpus, best = study.search.out, result["corpus"], result["metrics"]["best"]
    lines = [
        f"Made on {datetime.now(UTC):%Y-%m-%d} by: {mask_credentials(study.search.command)}",
        f"best, trial {result['best_trial']} of {result['trials']}: MRR {best['mrr']:.4f}, hit@10 {best['hit_at_10']:.4f}, "
        f"in {best['seconds']:.1f} s, on {corpus['num_users']:,} users of corpus {study.record['window_id']}",
        result["verdict"],
        "Use it by `surf2vec run --config THIS-FILE`, or put this table into your own configuration.",
    ]
    # The command may contain characters that are not allowed in a TOML comment.
    header = ["# " + shown(line) for line in lines]
    table = [f"{name} = {json.dumps(value)}" for name, value in result["settings"].items()]
    try:
        with replace_file(out) as temporary:
            temporary.write_text("\n".join([*header, "", "[train]", *table, ""]), encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror or error}; use another --out") from None


def search_space(
    config: TrainConfig, counts: NDArray[np.int64], has_order: bool, max_vector_size: int | None = None
) -> Space:
    """Return the settings to search and their bounds, which always include the values in `config`; counts int64[V].

    Only settings that have an effect are searched: `window` with context, `negative`, `ns_exponent` and `item_l2` without a
    tree, `discount` with sampled softmax, `recency` if it is set and the log has an order, `sample` between the
    share of the average and of the most frequent item (above, it removes nothing; below, half the log). `vector_size` is
    searched only up to a given `max_vector_size`, as memory and disk grow with it.
    """
    space: Space = {
        "alpha": FloatDistribution(0.02, 0.5, log=True),
        "epochs": IntDistribution(3, 30, log=True),
        "l2": FloatDistribution(0.02, 4.0, log=True),
    }
    if not config.hs:
        space["negative"] = IntDistribution(5, 60, log=True)
        space["ns_exponent"] = FloatDistribution(_EXPONENT_FROM[config.objective], 1.0)
        space["item_l2"] = FloatDistribution(0.01, 0.5, log=True)
        if config.objective == "sampled_softmax":
            space["discount"] = FloatDistribution(0.0, 0.7)
    if config.has_inputs:
        space["window"] = IntDistribution(1, 10, log=True)
    if has_order and config.recency is not None:
        space["recency"] = FloatDistribution(0.5, 50.0, log=True)
    for name, bounds in space.items():
        given = getattr(config, name)
        if not bounds.log or given:  # a logarithmic range cannot contain 0
            kind: Any = type(bounds)
            space[name] = kind(min(bounds.low, given), max(bounds.high, given), log=bounds.log)
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


def propose(space: Space, done: Sequence[Trial], seed: int) -> dict[str, Setting]:
    """Return the settings of the next trial, a function of the ended trials; numbers have three digits."""
    proposed = _study(space, done, seed).ask(dict(space)).params
    return {
        name: value if isinstance(value, int) else min(max(_rounded(value), space[name].low), space[name].high)
        for name, value in proposed.items()
    }


def find_importances(space: Space, done: Sequence[Trial]) -> dict[str, float]:
    """Return each setting's importance for being among the best trials, as shares of 1, the largest first."""
    best_share = min(0.5, max(0.1, _WANTED_BEST / len(done)))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best_share)
    return dict(optuna.importance.get_param_importances(_study(space, done, 0), evaluator=evaluator))


def apply_settings(base: TrainConfig, settings: dict[str, Setting]) -> TrainConfig:
    """Return `base` with these settings. min_alpha keeps its ratio to alpha."""
    if all(getattr(base, name) == value for name, value in settings.items()):
        return base
    changed = dict(settings)
    changed["min_alpha"] = _rounded(changed["alpha"] * base.min_alpha / base.alpha)
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]


def _study(space: Space, done: Sequence[Trial], seed: int) -> optuna.Study:
    """Return an Optuna study in memory with the ended trials; it maximises the MRR."""
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=_STARTUP_TRIALS, multivariate=True, seed=epoch_key(seed, len(done)) % 2**32
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in done:
        params = {name: _nearest(name, bounds, trial["settings"][name]) for name, bounds in space.items()}
        value = trial["metrics"]["mrr"]
        study.add_trial(optuna.create_trial(params=params, distributions=dict(space), value=value))
    return study


def _nearest(name: str, bounds: Bounds, value: Setting) -> Setting:
    """Return the value in the bounds that stands for a setting, which may lie outside, such as 0 in a logarithmic range."""
    if value == 0 and name in ZERO_IS_HIGH:
        return bounds.high
    clipped = min(max(value, bounds.low), bounds.high)
    if isinstance(bounds, IntDistribution):
        return bounds.low + round((clipped - bounds.low) / bounds.step) * bounds.step
    return clipped


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
