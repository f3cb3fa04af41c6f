"""The ladder's rungs in which our trainer trains and the evaluation of the rungs before is asked after each of its epochs.

All users are in memory, so that their vectors can be read where they are.

    python -m tests.benchmarks.ladder_kernel FOLDER CORPUS STORE CONFIG DEVICE graph|bare

CONFIG: a file with the trainer's settings; the last: whether autograd keeps the graph of an evaluation.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from surf2vec.trainer.__main__ import read_config
from surf2vec.trainer.training import loop
from surf2vec.trainer.training.job import Job
from tests.benchmarks.ladder_torch import Question, evaluate

MEMORY_BYTES = 4 * 10**9


class Asking:
    """Asks after each epoch what the vectors rank: an `on_event` of the training that it is given."""

    def __init__(self, question: Question, keeps_graph: bool) -> None:
        self.question, self.keeps_graph = question, keeps_graph
        self.training: loop.Training
        self.evaluating_seconds = 0.0
        self.found: list[dict[str, float]] = []

    def __call__(self, name: str, values: dict[str, Any]) -> None:
        if name != "progress" or values["done"] % self.training.course.corpus.num_partitions:
            return
        start = time.perf_counter()
        heldout_loss, hit_at_20 = evaluate(*self.tables(), self.question, self.keeps_graph)
        self.evaluating_seconds += time.perf_counter() - start
        self.found.append({"seconds": self.seconds, "heldout_loss": heldout_loss, "hit_at_20": hit_at_20})

    @property
    def seconds(self) -> float:
        """Of training so far, with what it waited for commits, and of asking."""
        record = self.training.record
        return record.train_seconds + record.commit_stall_seconds + self.evaluating_seconds

    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the vectors of users and items as autograd watches them."""
        residents = self.training.slots.residents
        users = np.concatenate([residents[p].rows.widened() for p in range(self.training.course.corpus.num_partitions)])
        tables = torch.from_numpy(users), torch.from_numpy(self.training.items.outputs.vectors.copy())
        users, items = (table.to(self.question.items.device).requires_grad_() for table in tables)
        return users, items


class Watched(loop.Training):
    """A training that the one who listens to it can look into."""

    def run(self, stop: threading.Event) -> None:
        assert isinstance(self.on_event, Asking)
        self.on_event.training = self
        super().run(stop)


def train(folder: Path, job: Job, keeps_graph: bool) -> dict[str, Any]:
    """Train and evaluate after each epoch; returns the clock and what was found. The vectors are in the store."""
    device = "cuda" if job.kernel == "gpu" else "cpu"
    asking = Asking(Question.read(folder, device), keeps_graph)
    with patch.object(loop, "Training", Watched):
        loop.train(job, asking)
    return {
        "seconds": asking.seconds, "evaluating_seconds": asking.evaluating_seconds, "is_stopped": False,
        # On a GPU rows are on their way while this asks: it costs what it costs, but what it finds is of no moment.
        "evaluations": asking.found if device == "cpu" else [], "epochs": len(asking.found),
        "device_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
    }  # fmt: skip


if __name__ == "__main__":
    asked, corpus_dir, store_dir, config = map(Path, sys.argv[1:5])
    kernel = "gpu" if sys.argv[5] == "cuda" else "cpu"
    job = Job(corpus_dir, store_dir, read_config(config), MEMORY_BYTES, kernel)
    print(json.dumps(train(asked, job, keeps_graph=sys.argv[6] == "graph")))
