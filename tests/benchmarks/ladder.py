"""The ladder: the loop that one writes first in PyTorch beside our trainer, by seconds until a model is there, and by memory.

One log (people walking through Wikipedia), one split, one objective: PV-DBOW of 128 dimensions by sampled softmax with 20 drawn
items. Each step is a process of its own, with two cores.

    quality    hit@20 of the held-out next item, of all users; TARGET is 1.7 x what popularity reaches there, above gensim
               (.15) and BPR (.18). Both have to end at or above it, by one function
    seconds    of training and the step's own evaluations. Nobody knows beforehand how many epochs suffice: the loop trains
               EPOCHS, as the trainer does by default, and evaluates all users and items after each (ladder_torch.py); the
               trainer looks at its own held-out loss of a fixed sample and ends when it rises. Imports, compiling and
               reading of files are not in it
    memory     the most anonymous and shared memory of the step's process

The trainer runs with three seeds: the median. The steps between them are in revision 8cee475 (docs/figures.md).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.harness import make_case, run_benchmark, run_watched
from tests.benchmarks.ladder_torch import DIMENSIONS, EXPONENT, NEGATIVES
from tests.benchmarks.logs import THREADS, find_log, held_out_question, held_out_rows, make_corpus
from tests.benchmarks.peers import Vectors, answer_held_out, training_histories

LOG = "wikispeedia_unfinished"
TARGET = 0.25
EPOCHS = 20
SEEDS = (1, 2, 3)
SETTINGS: dict[str, Any] = (
    {"vector_size": DIMENSIONS, "negative": NEGATIVES, "ns_exponent": EXPONENT, "threads": THREADS, "patience": 1}
    | {"negative_weight": 1, "discount": 0, "bias": 0, "alpha": 0.15, "min_alpha": 0.015, "l2": 0.7}
    | {"item_l2": 0.08}
)


def measure_ladder(data: Path) -> list[dict[str, Any]]:
    """A case for each step; the ratio is the loop's seconds by the step's."""
    with tempfile.TemporaryDirectory(prefix="ladder.") as name:
        folder = Path(name)
        corpus = make_corpus(find_log(data, LOG, folder), folder / "root")
        write_arrays(corpus, folder)
        loop = run_loop(corpus, folder)
        trained = sorted((run_trainer(corpus, folder, seed) for seed in SEEDS), key=lambda run: run["seconds"])
    return [
        make_case(step, loop["seconds"] / run["seconds"], f"hit@20 >= {TARGET:g}", run["hit@20"] >= TARGET) | run
        for step, run in (("plain DataLoader loop", loop), ("the trainer", trained[len(trained) // 2]))
    ]


def write_arrays(corpus: Corpus, folder: Path) -> None:
    """Write what the loop reads: a pair of a user and an item for each token, counts, and the question."""
    histories, rows = list(training_histories(corpus)), held_out_rows(corpus)
    question = held_out_question(corpus, np.empty((len(rows), 0), dtype=np.float32))
    arrays = (
        {"pairs_users": np.repeat(np.arange(len(histories), dtype=np.int32), [len(tokens) for tokens in histories])}
        | {"pairs_items": np.concatenate(histories), "num_users": np.array(len(histories))}
        | {"counts": corpus.count_training_tokens(), "question_rows": rows}
        | {"question_items": question.items, "question_seen_rows": question.seen_rows}
        | {"question_seen_items": question.seen_items}
    )
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def run_loop(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """The figures of the loop in PyTorch."""
    told = run_watched("tests.benchmarks.ladder_torch", str(folder), str(EPOCHS))
    users, items = (np.load(folder / f"trained_{name}.npy") for name in ("users", "items"))
    return told | {"hit@20": hit_at_20(corpus, Vectors(users, items, 0.0))}


def run_trainer(corpus: Corpus, folder: Path, seed: int) -> dict[str, Any]:
    """The figures of `python -m surf2vec.trainer` into an empty store."""
    store, config = folder / "store", folder / "config.json"
    shutil.rmtree(store, ignore_errors=True)
    config.write_text(json.dumps(SETTINGS | {"epochs": EPOCHS, "seed": seed}))
    told = run_watched(
        *("surf2vec.trainer", "--corpus", str(corpus.folder), "--store", str(store), "--config", str(config)),
        *("--host-memory", "4GB"),
    )
    generation = open_generation(store)
    users = np.concatenate([generation.read_users(p) for p in range(corpus.num_partitions)])
    return {
        "seconds": told["train_seconds"] * (1 + told["commit_stall"]),
        "epochs": told["stopped_after_epoch"] or EPOCHS,
        "peak_bytes": told["peak_bytes"],
        "hit@20": hit_at_20(corpus, Vectors(users, generation.read_items(), 0.0)),
    }


def hit_at_20(corpus: Corpus, vectors: Vectors) -> float:
    return float(np.mean(answer_held_out(corpus, vectors).ranks <= 20))


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_ladder, small={"EPOCHS": 1, "SEEDS": (1,)}))
