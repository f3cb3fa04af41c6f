"""The item table larger than the budget: quality in item blocks, a tenth of the largest size trained, the largest by plan.

quality    Both parts as shipped, two seeds, the interest in NUM_BLOCKS item blocks and four chunks beside one block. A budget
           of a third of the item table holds three images of a ninth each, as the planner counts. These tables (2 and 21 MB)
           are less than what a process differs by from run to run, so here the planner is replaced by one that divides so.
inference  Held-out users inferred from what training saw of them, block after block, beside all items at once: the same
           items, those that were trained in blocks.
a tenth    1 million items x 300 dimensions (1.2 GB), --host-memory 1.2GB, one epoch: `python -m surf2vec.trainer` in
a process of its
           own, in a memory cgroup where one can be made, caches dropped before. Sampling and Huffman's tree have 400,000
           users of 25 Zipf tokens, the two-level tree, of which a token moves 2,000 rows, 4,000 users.
by plan    10 million items x 300, 5 million users, 12 GB on the host and on a GPU, if there is one: what `surf2vec plan` says.
           Without a path: its item table is never divided, and alone would need 23 GB.

Passed: hit@20 and MRR no lower than beside, that is, not by more than two paired standard errors over users and seeds;
peak memory within the budget. The ratio is the lower of both metrics' ratios, or the peak by the budget.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.evaluation.evaluate import Question, rank_held_out
from surf2vec.tasks.evaluation.scores import score_of
from surf2vec.tasks.training.forecast import Volume, plan_size
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.plan.alone import Plan
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.layout import image_of_items
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.training import preparation
from surf2vec.trainer.training.infer import freeze_items, infer_parts, take_histories
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import BothParts, join_parts
from tests.benchmarks.defaults import METRICS
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import MEMORY_BYTES, THREADS, find_log, held_out_question, held_out_rows, make_corpus
from tests.benchmarks.peers import is_no_lower
from tests.benchmarks.swap import TOKENS_A_USER, run_alone, write_corpus
from tests.roots.store_contents import read_item_table

LOGS = ("wikispeedia_unfinished", "gowalla_train")
SEEDS = (1, 2)
NUM_BLOCKS, NUM_CHUNKS = 13, 4
MARK = "hit@20, MRR no lower (2 s.e.)"

TENTH_ITEMS, DIMS, TENTH_BUDGET = 1_000_000, 300, 1_200_000_000
FASTEST = {"negative": 8}
TENTHS: dict[str, tuple[int, dict[str, Any]]] = {
    "sampling": (400_000, FASTEST),
    "Huffman": (400_000, {"hs": 1}),
    "two-level": (4_000, {"hs": 1, "tree": "two_level"}),
}
"""Users and settings of each case."""

PLANNED = Volume(users=5_000_000, items=10_000_000, tokens=5_000_000 * TOKENS_A_USER, partitions=128)
PLAN_BUDGET = 12_000_000_000
PLANS: dict[str, dict[str, Any]] = {"sampling": FASTEST, "two-level": {"hs": 1, "tree": "two_level"}}

Values = dict[str, NDArray[np.float64]]


def measure_blocks(data: Path) -> list[dict[str, Any]]:
    """All cases."""
    cases = []
    for log in LOGS:
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus(find_log(data, log, Path(folder)), Path(folder) / "root")
            cases += compare_quality(log, corpus, Path(folder))
    with tempfile.TemporaryDirectory(prefix="blocks.") as folder:
        cases += [train_tenth(Path(folder), name, *case) for name, case in TENTHS.items()]
        cases += [plan_largest(Path(folder), name, settings) for name, settings in PLANS.items()]
    return cases


def compare_quality(log: str, corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Training in blocks beside training in one, and inference in blocks beside inference with all items."""
    sides: dict[str, list[Values]] = {name: [] for name in ("one", "blocks", "inferred", "inferred in blocks")}
    for seed in SEEDS:
        config = dataclasses.replace(TrainConfig(), seed=seed, threads=THREADS)
        for name in ("one", "blocks"):
            store = folder / f"{name}-{seed}"
            planner = divide if name == "blocks" else preparation.plan_training
            with patch("surf2vec.trainer.training.preparation.plan_training", planner):
                train(Job(corpus.folder, store, config, MEMORY_BYTES))
            generation = open_generation(store)
            both = BothParts(generation, corpus)
            users = np.concatenate([both.read_users(p) for p in range(corpus.num_partitions)])
            sides[name].append(ask(corpus, generation, users[held_out_rows(corpus)]))
        assert generation.num_blocks == NUM_BLOCKS
        whole = join_generation(generation, folder / f"joined-{seed}")
        for name, items in (("inferred", whole), ("inferred in blocks", generation)):
            sides[name].append(ask(corpus, generation, infer_held_out(corpus, items, generation)))
    values = {
        name: {metric: np.concatenate([one[metric] for one in told]) for metric in METRICS}
        for name, told in sides.items()
    }
    name = log.split("_")[0]
    return [
        judge(f"quality, {name}", values["blocks"], values["one"]),
        judge(f"inference, {name}", values["inferred in blocks"], values["inferred"]),
    ]


def divide(*arguments: Any) -> Plan:
    """The planner's plan, but in NUM_BLOCKS item blocks and NUM_CHUNKS chunks."""
    plan = REAL_PLANNER(*arguments)
    chunk = -(-plan.num_partitions // NUM_CHUNKS)
    num_chunks = -(-plan.num_partitions // chunk)
    return dataclasses.replace(plan, num_blocks=NUM_BLOCKS, chunk_partitions=chunk, num_chunks=num_chunks)


REAL_PLANNER = preparation.plan_training


def ask(corpus: Corpus, generation: Generation, vectors: NDArray[np.float32]) -> Values:
    """The metrics of the held-out users with these vectors, float32[m, D], a value a user."""
    question: Question = held_out_question(corpus, vectors)
    ranks = rank_held_out(question, score_of(generation, corpus.count_training_tokens())).ranks
    return {name: metric(ranks) for name, metric in METRICS.items()}


def join_generation(generation: Generation, folder: Path) -> Generation:
    """A generation with the same items in one block."""
    folder.mkdir()
    writer = Writer(folder, 1)
    writer.write("interest", 0, image_of_items(read_item_table(generation)))
    kept = {name: generation.manifest[name] for name in ("config", "num_items", "vector_size", "partitions")}
    return writer.commit(kept | {"num_blocks": 1, "resident_block": 0, "recency": generation.config.used_recency})


def infer_held_out(corpus: Corpus, items: Generation, generation: Generation) -> NDArray[np.float32]:
    """The held-out users' vectors from what training saw of them, float32[m, D]: interests fitted to `items`, paths summed up."""
    parts = []
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        held = np.flatnonzero(histories.is_evaluated)
        parts.append((partition, take_histories(histories, held, histories.ends[held])))
    frozen = freeze_items(items, corpus.count_training_tokens(), THREADS)
    vectors = []
    for (_, histories), (_, rows) in zip(parts, infer_parts(frozen, parts), strict=True):
        vectors.append(join_parts(generation, rows.vectors, histories.tokens, histories.starts, histories.ends))
    return np.concatenate(vectors)


def judge(case: str, ours: Values, beside: Values) -> dict[str, Any]:
    """A case of quality."""
    ratios = [float(ours[metric].mean() / beside[metric].mean()) for metric in METRICS]
    figures = {
        f"{metric} {side}": float(values[metric].mean())
        for metric in METRICS
        for side, values in (("in blocks", ours), ("beside", beside))
    }
    passed = all(is_no_lower(ours[metric], beside[metric]) for metric in METRICS)
    return {"case": case, "ratio": min(ratios), "mark": MARK, "passed": passed, "blocks": NUM_BLOCKS} | figures


def train_tenth(folder: Path, name: str, num_users: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One epoch at a tenth of the largest size, within the budget."""
    corpus_dir = folder / f"corpus-{num_users}"
    if not corpus_dir.exists():
        write_corpus(corpus_dir, num_users, TENTH_ITEMS)
    told = run_alone(
        corpus_dir, folder / "store", TENTH_BUDGET, 1, settings | {"vector_size": DIMS, "threads": THREADS}
    )
    return (
        make_case(
            f"a tenth, {name}", told["peak_bytes"] / TENTH_BUDGET, "peak <= budget", told["peak_bytes"] <= TENTH_BUDGET
        )
        | {"budget_bytes": TENTH_BUDGET, "users": num_users}
        | {"item_table_bytes": TENTH_ITEMS * (4 * DIMS + 4)}
        | {
            key: told[key]
            for key in ("peak_bytes", "blocks", "chunks", "predicted_seconds", "seconds", "stall", "cgroup")
        }
    )


def plan_largest(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What the planner says of 10 million items x 300; trees are for the CPU."""
    device_memory = None if "hs" in settings else str(PLAN_BUDGET)
    resources = ResourcesConfig(host_memory=str(PLAN_BUDGET), device_memory=device_memory)
    config = TrainConfig(vector_size=DIMS, epochs=1, threads=THREADS, parts="interest", **settings)
    plan = plan_size(folder, PLANNED, config, resources)
    return (
        make_case(
            f"by plan, {name}", plan["peak_bytes"] / PLAN_BUDGET, "peak <= budget", plan["peak_bytes"] <= PLAN_BUDGET
        )
        | {"budget_bytes": PLAN_BUDGET, "users": PLANNED.users}
        | {"item_table_bytes": PLANNED.items * (4 * DIMS + 4), "peak_bytes": plan["peak_bytes"]}
        | {"blocks": plan["num_blocks"], "chunks": plan["num_chunks"]}
        | {"predicted_seconds": plan["seconds"], "seconds": None, "stall": None, "cgroup": "none"}
        | {"device_bytes": plan["device_bytes"]}
    )


if __name__ == "__main__":
    sys.exit(
        run_benchmark(measure_blocks, small={"LOGS": (), "TENTH_ITEMS": 2_000, "TENTHS": {"sampling": (400, FASTEST)}})
    )
