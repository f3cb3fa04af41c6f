"""What is asked of a training, and what makes two of them the same."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from trainer.config import TrainConfig
from trainer.gensim.warm_start import WarmStart
from trainer.store.tokens import Corpus
from trainer.system.files import digest_json

RESULT_NEUTRAL = ("commit_seconds", "threads", "sharing", "exchange_tokens", "staleness")
"""Settings that a resumed run may change: they do not say what is learned, or the plan that it began with does."""


@dataclass(frozen=True)
class Schedule:
    """Epochs and learning rates of a training that goes on from vectors that are good already, in place of its settings'."""

    epochs: int
    alpha: float
    min_alpha: float


@dataclass(frozen=True)
class Job:
    """What to train, where, and within which budget; `warm_start`: vectors in memory that the items begin from.

    start: what tells a training that goes on from an older generation from others (trainer/training/next_night.py), its
    schedule included.
    """

    corpus_dir: Path
    store_dir: Path
    config: TrainConfig
    host_memory_bytes: int
    kernel: str = "cpu"
    device_memory_bytes: int | None = None
    warm_start: WarmStart | None = None
    start: str = ""
    schedule: Schedule | None = None

    @property
    def training_config(self) -> TrainConfig:
        """The settings that this training goes by; those of the job are what its vectors are known by, and inferred with."""
        return dataclasses.replace(self.config, **dataclasses.asdict(self.schedule)) if self.schedule else self.config


def identity(corpus: Corpus, config: TrainConfig, start: str = "") -> str:
    """What a training is: the digest of its corpus, its start, and the settings that say what is learned."""
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in RESULT_NEUTRAL}
    return digest_json({"corpus": corpus.manifest, "config": settings} | ({"start": start} if start else {}))


def effective_recency(config: TrainConfig, corpus: Corpus, num_blocks: int = 1) -> float:
    """`train.recency`, or 0 where the order of a user's tokens is not one of time.

    A third of it with several item blocks: a user's tokens then come block by block, no longer the newest last, and what
    that did for the newest their weight has to do (wikispeedia, hit@20: .351 in order, .335 in 13 blocks, .351 so).
    """
    recency = 0.0 if corpus.manifest["undated"] else config.recency
    return recency if num_blocks == 1 else recency / 3
