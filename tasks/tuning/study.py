"""What is kept of a search for settings: its story in the root, its runs in MLflow, and the winner as a configuration file.

The story, ROOT/tune/<study-id>.json, has the trials that ended and is replaced whole after each, so a search that was killed
goes on after the last. Each trial is a run in MLflow under that of its search; one that a kill kept out of it follows.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.config import PublishConfig
from tasks.registry import mlflow_runs
from tasks.root.credentials import mask_credentials
from tasks.root.identity import ROOT_TAG, claim_registry, is_own_registry, registry_uri
from tasks.root.run import Root
from tasks.root.wording import shown
from tasks.tuning.search_space import Point, Space
from trainer.config import TrainConfig
from trainer.errors import ConfigError, ResourceError
from trainer.system.files import digest_json, read_json, replace_file, write_json
from trainer.training.job import RESULT_NEUTRAL

_FORMAT_VERSION = 1
_TOLD = ("num_users", "num_tokens", "num_held_out", "of_partitions")


@dataclass(frozen=True)
class Search:
    """What is asked. `sample`: share of the micro-partitions; no trial begins after `seconds`; `command`: as it was given.

    Raises ConfigError for a sample or a file that cannot be, ResourceError when the file's folder cannot be written to.
    """

    trials: int
    sample: float
    out: Path
    train: TrainConfig
    publish: PublishConfig
    memory_bytes: int
    command: str
    max_vector_size: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 1:
            raise ConfigError(f"--sample is {self.sample:g}, but it has to be above 0 and at most 1")
        if self.out.suffix != ".toml" or self.out.is_dir():
            raise ConfigError(f"--out {self.out} is no TOML file: name one, for instance --out tuned.toml")
        parent = next(path for path in self.out.resolve().parents if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise ResourceError(
                f"cannot write {self.out}: {parent} is no folder that may be written to; give another --out"
            )


class Study:
    """One search: known by its corpus, sample, settings and bounds, whatever the number of trials asked for."""

    def __init__(self, root: Root, asked: Search, manifest: dict[str, Any], space: Space) -> None:
        """`manifest`: the sample's, with `of_partitions`, how many the whole corpus has."""
        self.root, self.asked, self.space = root, asked, space
        base = {name: value for name, value in dataclasses.asdict(asked.train).items() if name not in RESULT_NEUTRAL}
        identity = {
            "format_version": _FORMAT_VERSION, "window_id": manifest["window_id"],
            "partitions": manifest["sampled_partitions"], "base": base,
            "bounds": {name: [bounds.low, bounds.high] for name, bounds in space.items()},
        }  # fmt: skip
        self.study_id = digest_json(identity)[:12]
        self.path = root.path / "tune" / f"{self.study_id}.json"
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        begun = identity | {"study_id": self.study_id, "created_at": created_at, "trials": []}
        self.story: dict[str, Any] = read_json(self.path) if self.path.exists() else begun
        self.sample = {"partitions": len(manifest["sampled_partitions"])} | {name: manifest[name] for name in _TOLD}

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials that ended: settings, config, metrics, gain, failure or None, ended_at_ms, and soon mlflow_run_id."""
        return self.story["trials"]

    @property
    def num_trials(self) -> int:
        return len(self.trials)

    @property
    def best_trial(self) -> int:
        """The number of the trial with the best MRR, counted from 1; of equals the first."""
        return 1 + max(range(self.num_trials), key=lambda i: self.trials[i]["metrics"]["mrr"])

    def points(self) -> list[Point]:
        """The trials as the search sees them."""
        return [Point(trial["settings"], trial["metrics"]["mrr"]) for trial in self.trials]

    def tell(self) -> str:
        """What is searched on, and how far it is, in a line."""
        sample = self.sample
        return (
            f"searching {', '.join(self.space)} on {sample['partitions']} of {sample['of_partitions']} micro-partitions: "
            f"{sample['num_users']:,} users, {sample['num_tokens']:,} tokens, {sample['num_held_out']:,} users held out; "
            f"{self.num_trials} of {self.asked.trials} trials have ended"
        )

    def add(self, trial: dict[str, Any], reciprocals: NDArray[np.float64]) -> None:
        """Keep a trial that ended, here and in MLflow; reciprocals float64[m]: 1 / rank of each held-out item.

        Its gain over the first trial is that of the same users, so its standard error is that of their differences.
        """
        if not self.trials:
            with replace_file(self.path.with_suffix(".npy")) as temporary, open(temporary, "wb") as file:
                np.save(file, reciprocals, allow_pickle=False)
        gains = reciprocals - np.load(self.path.with_suffix(".npy"), allow_pickle=False)
        error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
        self.trials.append(trial | {"gain": {"mrr": float(gains.mean()), "standard_error": error}})
        write_json(self.path, self.story)
        self._log_trial(self.num_trials)

    @property
    def uri(self) -> str:
        return registry_uri(self.root, self.asked.publish)

    @property
    def masked_uri(self) -> str:
        """Where the runs are, without a password."""
        return mask_credentials(self.uri)

    @cached_property
    def mlflow_run_id(self) -> str:
        """The run of the whole search; opened when first asked for."""
        params = {f"train.{name}": value for name, value in self.story["base"].items()} | self.sample
        return self._open_run("", {"window_id": self.story["window_id"], "study_id": self.study_id}, params)

    def open_runs(self) -> None:
        """Open the search's run, before any trial costs time, and log the trials that a kill kept out of MLflow."""
        assert self.mlflow_run_id
        for number, trial in enumerate(self.trials, start=1):
            if "mlflow_run_id" not in trial:
                self._log_trial(number)

    def end_runs(self, result: dict[str, Any]) -> None:
        """Log the winner and the story to the search's run, and end it."""
        metrics = {f"default_{name}": value for name, value in result["metrics"]["default"].items()}
        self._log_metrics(self.mlflow_run_id, metrics | result["metrics"]["best"], self.trials[-1]["ended_at_ms"])
        mlflow_runs.log_files(self.uri, self.mlflow_run_id, [self.asked.out], {"tune.json": self.story})
        mlflow_runs.end_run(self.uri, self.mlflow_run_id)

    def _log_trial(self, number: int) -> None:
        trial = self.trials[number - 1]
        params = {f"train.{name}": value for name, value in trial["config"].items()}
        tags = {mlflow_runs.PARENT_TAG: self.mlflow_run_id, "study_id": self.study_id}
        run_id = self._open_run(f"-{number:03d}", tags, params)
        self._log_metrics(run_id, trial["metrics"], trial["ended_at_ms"])
        mlflow_runs.end_run(self.uri, run_id, has_failed=trial["failure"] is not None)
        trial["mlflow_run_id"] = run_id
        write_json(self.path, self.story)

    def _open_run(self, suffix: str, tags: dict[str, str], params: dict[str, Any]) -> str:
        publish = self.asked.publish
        artifacts = self.root.artifacts if is_own_registry(self.root, publish) else None
        tags = tags | {ROOT_TAG: claim_registry(self.root, publish)}
        return mlflow_runs.open_run(
            self.uri, artifacts, publish.experiment, f"tune-{self.study_id}{suffix}", tags, params
        )

    def _log_metrics(self, run_id: str, metrics: dict[str, float], at_ms: int) -> None:
        points = [mlflow_runs.Metric(name, float(value), at_ms, 0) for name, value in metrics.items()]
        mlflow_runs.log_metrics(self.uri, run_id, points)


def write_config(study: Study, result: dict[str, Any]) -> None:
    """Write the winner as a TOML file: a [train] table of what differs from the defaults, and where it comes from.

    Raises ResourceError when it cannot be written.
    """
    out, sample, metrics = study.asked.out, result["sample"], result["metrics"]
    rows = {"given, trial 1": metrics["default"], f"best, trial {result['best_trial']}": metrics["best"]}
    lines = [
        f"What `surf2vec tune` found best on {datetime.now(UTC):%Y-%m-%d} in {result['trials']} trials, by MRR, on a sample of",
        f"corpus {study.story['window_id']}: {sample['partitions']} of {sample['of_partitions']} micro-partitions, "
        f"{sample['num_users']:,} users, {sample['num_held_out']:,} of them held out.",
        f"{'':<16}{'MRR':>8}{'hit@10':>8}{'hit@20':>8}{'seconds':>9}",
        *(
            f"{name:<16}{row['mrr']:>8.4f}{row['hit_at_10']:>8.4f}{row['hit_at_20']:>8.4f}{row['seconds']:>9.1f}"
            for name, row in rows.items()
        ),
        f"made by: {mask_credentials(study.asked.command)}",
        result["verdict"],
        "use it:  surf2vec run --config THIS-FILE, or put this table into a configuration of your own",
    ]
    # A character that a TOML comment may not have can come in with the command.
    header = ["# " + shown(line) for line in lines]
    table = [f"{name} = {json.dumps(value)}" for name, value in result["settings"].items()]
    try:
        with replace_file(out) as temporary:
            temporary.write_text("\n".join([*header, "", "[train]", *table, ""]), encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror or error}; give another --out") from None
