"""Small releases: a corpus from literal histories, vectors drawn from a seed, and the record of their run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import ExportConfig, PublishConfig
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation
from tests.data.corpora import write_corpus

NUM_ITEMS = 40
VECTOR_SIZE = 8
# The two ways in which a registered model has its vectors; what holds for one holds for both.
STORAGES = {"copy": PublishConfig(), "reference": PublishConfig(copy_below="0")}
ONE_IN_CI = ["copy", pytest.param("reference", marks=pytest.mark.long)]
"""Both of STORAGES, for tests that take minutes."""
ODD_IDS = ("ünïcode-Ω", "名前", "a b'c\"d", "🦊" * 20, "x" * 5000, "12", "0012")


@dataclass
class FakeGeneration:
    """What export reads of a generation, drawn from a seed; `users` are given a partition at a time."""

    users: list[np.ndarray]
    items: np.ndarray
    generation: int = 1
    has_item_vectors: bool = True
    bias: float = 0.0

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(parts="interest", vector_size=self.vector_size, bias=self.bias)

    @property
    def num_partitions(self) -> int:
        return len(self.users)

    @property
    def num_items(self) -> int:
        return len(self.items)

    @property
    def vector_size(self) -> int:
        return self.items.shape[1]

    def read_users(self, partition: int) -> np.ndarray:
        return self.users[partition]

    def read_items(self, start: int, stop: int) -> np.ndarray:
        return self.items[start:stop]


def draw_generation(corpus_dir: Path, seed: int = 1) -> FakeGeneration:
    """Vectors for the users and items of a corpus; float32, standard normal."""
    rng = np.random.default_rng(seed)
    parts = sorted(corpus_dir.glob("p*.users.parquet"))
    users = [rng.standard_normal((pq.read_metadata(part).num_rows, VECTOR_SIZE), np.float32) for part in parts]
    num_items = pq.read_metadata(corpus_dir / "vocabulary.parquet").num_rows
    return FakeGeneration(users, rng.standard_normal((num_items, VECTOR_SIZE), np.float32), seed)


def make_corpus(root: Root, num_users: int = 60, partitions: int = 4, window_id: str = "window") -> Path:
    """A corpus with odd user ids among plain ones; user i visited items i, i + 1 and i again."""
    ids = [f"user-{i}" for i in range(num_users)] + list(ODD_IDS)
    histories = {user_id: [i % NUM_ITEMS, (i + 1) % NUM_ITEMS, i % NUM_ITEMS] for i, user_id in enumerate(ids)}
    write_corpus(root.corpus(window_id), histories, partitions, NUM_ITEMS)
    return root.corpus(window_id)


def make_release(
    root: Root, release: str = "r1", num_users: int = 60, partitions: int = 4, seed: int = 1, **storage: Any
) -> Path:
    """An export of its own corpus and vectors, stored by these settings of `export.`; returns its folder."""
    corpus_dir = make_corpus(root, num_users, partitions, f"window-{release}")
    return export_release(root, release, corpus_dir, draw_generation(corpus_dir, seed), **storage)


def export_release(
    root: Root, release: str, corpus_dir: Path, generation: Generation | FakeGeneration, **storage: Any
) -> Path:
    """The export of a generation by the project's own step, by default without activity; returns its folder."""
    config = ExportConfig(**{"activity": False} | storage)
    job = Export(
        corpus_dir, root.export(release), release, f"run-{release}", "space-1", config, noise_key=b"a key of the root"
    )
    export_vectors(job, generation)  # type: ignore[arg-type]
    return root.export(release)


def read_users(export_dir: Path) -> dict[str, np.ndarray]:
    """Every user's vector, straight from the files."""
    tables = [pq.read_table(path) for path in sorted((export_dir / "user_vectors").iterdir())]
    return {
        user_id: np.array(vector, np.float32)
        for table in tables
        for user_id, vector in zip(table["user_id"].to_pylist(), table["vector"].to_pylist(), strict=True)
    }


def read_items(export_dir: Path) -> tuple[list[str], np.ndarray]:
    """The items' urls and vectors, straight from the file."""
    table = pq.read_table(export_dir / "item_vectors" / "part-00000.parquet")
    return table["url"].to_pylist(), np.array(table["vector"].to_pylist(), np.float32)


def write_run_record(release: str = "r1", steps: dict[str, Any] | None = None, **values: Any) -> RunRecord:
    """A run's record as far as registering reads it, with these steps and values besides."""
    curve = [
        {"epoch": 0.5, "seconds": 1.0, "tokens_per_second": 1e6, "loss": 2.0, "heldout_loss": None, "alpha": 0.1},
        {"epoch": 1.0, "seconds": 2.0, "tokens_per_second": 2e6, "loss": 1.5, "heldout_loss": 1.75, "alpha": 0.05},
    ]
    corpus = {"seconds": 1.5, "since": "2015-05-17", "until": "2015-05-18", "funnel": [["lines", 100], ["tokens", 90]]}
    metrics = {"hit_at_10": 0.25, "popularity_hit_at_10": 0.125}
    record = {
        "run_id": f"run-{release}",
        "created_at": "2026-11-21T04:00:00+00:00",
        "config": {"train": {"epochs": 5}, "publish": {"tracking_uri": "http://me:hunter2@mlflow.example"}},
        "steps": {
            "corpus": corpus,
            "train": {"seconds": 2.5, "curve": curve},
            "evaluate": {"seconds": 0.5, "metrics": metrics},
            **(steps or {}),
        },
    }
    return RunRecord.model_validate(record | values)
