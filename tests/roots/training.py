"""Roots with a trained store, made without the flow: events, corpus and vectors of planted histories."""

from pathlib import Path
from typing import Any

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.layout import read_rows
from surf2vec.trainer.store.tokens import open_corpus, whole_window
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.flows.test_nightly import write_logs

MEMORY_BYTES = 4 * 10**9
SETTINGS: dict[str, Any] = {"vector_size": 4, "epochs": 2, "negative": 2, "threads": 1}


def prepare(path: Path, partitions: int, num_users: int = 60, settings: IngestConfig | None = None) -> tuple[Root, str]:
    """A root with events and their corpus; returns it and the corpus's window id."""
    root, settings = open_root(path), settings or IngestConfig()
    logs = [str(write_logs(path.parent / "logs" / name, users)) for name, users in (("a.csv", num_users), ("b.csv", 9))]
    ingest(root, logs, settings, partitions, MEMORY_BYTES, 1, ignore_event)
    told = build_corpus(root, CorpusRequest(settings, EvaluateConfig()), MEMORY_BYTES, 1)
    return root, told["window_id"]


def train_root(root: Root, window_id: str, **settings: Any) -> dict[str, Any]:
    """Train the corpus into the root's store, or answer what is there."""
    config = TrainConfig(**SETTINGS | settings)
    return train(Job(root.corpus(window_id), root.store, config, MEMORY_BYTES))


def make_trained(path: Path, partitions: int, num_users: int = 60, **settings: Any) -> Root:
    """A root whose store is trained."""
    root, window_id = prepare(path, partitions, num_users)
    train_root(root, window_id, **settings)
    return root


def rows_by_user(root: Root, generation: Generation | None = None) -> dict[str, bytes]:
    """Every user's vector and optimizer state as bytes, out of the store's current generation or another."""
    generation = generation or open_generation(root.store)
    corpus = open_corpus(root.corpus(whole_window(generation.manifest["window_id"])))
    found = {}
    for partition, entry in generation.manifest["users"].items():
        rows = read_rows(root.store, entry)
        ids = corpus.read_ids(int(partition)).to_pylist()
        for user_id, vector, square in zip(ids, rows.vectors, rows.squares, strict=True):
            if user_id is not None:
                found[user_id] = vector.tobytes() + square.tobytes()
    return found
