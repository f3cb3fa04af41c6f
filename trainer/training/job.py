"""The job of a training, and its identity: two trainings with the same identity are the same."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.store.generation import Generation, has_generation, open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.system.files import digest_json, read_json, write_secret

if TYPE_CHECKING:  # Arrow takes half a second to import, which every command would wait for
    from surf2vec.trainer.gensim.warm_start import WarmStart

RESULT_NEUTRAL = ("commit_seconds", "threads", "sharing", "exchange_tokens", "staleness", "popularity")
"""Settings that a resumed run may change: without effect on the result, or overridden by the first plan or the log's choice."""


@dataclass(frozen=True)
class LearningSchedule:
    """Epochs and learning rates that replace the settings' in a training that begins from trained vectors."""

    epochs: int
    alpha: float
    min_alpha: float


@dataclass(frozen=True)
class Job:
    """A corpus, a store, settings and budgets. warm_start: vectors in memory that the items begin from.

    process_bytes: what the process takes for itself, at least. start: identifies the vectors that a training begins from, and its
    schedule (trainer/training/next_night.py).
    """

    corpus_dir: Path
    store_dir: Path
    config: TrainConfig
    host_memory_bytes: int
    kernel: str = "cpu"
    device_memory_bytes: int | None = None
    process_bytes: int = 0
    warm_start: "WarmStart | None" = None
    start: str = ""
    schedule: LearningSchedule | None = None

    @property
    def training_config(self) -> TrainConfig:
        """The settings with the schedule. Manifests and inference use `config`."""
        if self.schedule is None:
            return self.config
        return dataclasses.replace(self.config, **dataclasses.asdict(self.schedule))


def identity(corpus: Corpus, config: TrainConfig, start: str = "") -> str:
    """Return the digest of a training's corpus, its start, and the settings that affect the result."""
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in RESULT_NEUTRAL}
    return digest_json({"corpus": corpus.manifest, "config": settings} | ({"start": start} if start else {}))


def effective_recency(config: TrainConfig, corpus: Corpus, num_blocks: int = 1) -> float:
    """Return the recency; 0 without an order, a third with several item blocks, where the newest tokens do not come last."""
    recency = config.used_recency if corpus.has_order else 0.0
    return recency if num_blocks == 1 else recency / 3


def choose_parts(config: TrainConfig, corpus: Corpus, on_event: OnEvent = ignore_event) -> TrainConfig:
    """Return the settings with the parts that this log can have: without an order of its events there is no trail.

    Raises ConfigError when only a trail is wanted and there can be none.
    """
    reasons = {
        "the order of a user's events says nothing of what comes next": not corpus.has_order,
        "a tree of items (train.hs) ranks by the interest alone": bool(config.hs),
        "train.items_from has vectors of one part": bool(config.items_from),
        "they have too few dimensions for two parts": config.parts == "both" and not config.trail_size,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is None or config.parts == "interest":
        return config
    if config.parts == "trail":
        raise ConfigError(f"train.trail_weight is 1, but {reason}: set it to 0")
    log(on_event, f"vectors have no trail, as {reason}: all {config.vector_size} dimensions are the interest")
    return dataclasses.replace(config, parts="interest")


def describe_training(
    name: str, corpus: Corpus, config: TrainConfig, recency: float, kernel: str, kernel_reason: str
) -> dict[str, Any]:
    """Return the values of a training that all its manifests have."""
    return {
        "identity": name, "window_id": corpus.manifest["window_id"], "config": dataclasses.asdict(config), "recency": recency,
        "partitions": corpus.num_partitions, "num_items": corpus.num_items, "vector_size": config.vector_size,
        "kernel": kernel, "kernel_reason": kernel_reason,
    }  # fmt: skip


def find_generation(folder: Path, name: str) -> Generation | None:
    """Return the store's generation if it belongs to the training with this identity, otherwise None."""
    if not has_generation(folder):
        return None
    generation = open_generation(folder)
    return generation if generation.manifest["identity"] == name else None


def write_job(job: Job, path: Path) -> None:
    """Write a job for worker processes, without budgets and device. Raises ConfigError for a warm_start."""
    if job.warm_start is not None:
        raise ConfigError(
            "warm_start, vectors in the memory of this process, cannot be given to workers: write them to a file and name it "
            "in train.items_from, or train with one worker"
        )
    values = {
        "corpus_dir": str(job.corpus_dir.resolve()),
        "store_dir": str(job.store_dir.resolve()),
        "config": dataclasses.asdict(job.config),
        "start": job.start,
        "schedule": dataclasses.asdict(job.schedule) if job.schedule else None,
    }
    write_secret(path, json.dumps(values, indent=1).encode())


def read_job(path: Path, kernel: str, host_memory_bytes: int, device_memory_bytes: int | None) -> Job:
    """Read a job for a worker with this kernel and these budgets. Raises DamageError, ConfigError."""
    values: dict[str, Any] = read_json(path)
    config = config_from_dict(values["config"])
    schedule = LearningSchedule(**values["schedule"]) if values["schedule"] else None
    folders = Path(values["corpus_dir"]), Path(values["store_dir"])
    return Job(
        *folders, config, host_memory_bytes, kernel, device_memory_bytes, start=values["start"], schedule=schedule
    )
