"""The ladder's rungs in order, each a process of its own, whose memory is watched from outside.

A rung answers its clock and leaves its vectors in files; that they are good enough is asked of all by one function
(`tests.benchmarks.peers.answer_held_out`), after the clock and in another process.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.ladder_torch import DIMENSIONS, EXPONENT, NEGATIVES, Way
from tests.benchmarks.logs import held_out_question, held_out_rows
from tests.benchmarks.peers import Vectors, answer_held_out, training_histories

PLENTY, THREADS, WORKERS = "4GB", 2, 2
SETTINGS: dict[str, Any] = (
    {"vector_size": DIMENSIONS, "negative": NEGATIVES, "ns_exponent": EXPONENT}
    | {"negative_weight": 1, "discount": 0, "bias": 0, "alpha": 0.15, "min_alpha": 0.015, "l2": 0.7}
    | {"item_l2": 0.08}
)
PATIENCE = 1
WATCH_SECONDS = 0.05
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Of all rungs: numba's and torch's threads, in one process, would else spin while the others work."""


@dataclass(frozen=True)
class Ground:
    """What all rungs stand on: a corpus, and beside it a folder with its pairs and its question as arrays."""

    corpus: Corpus
    folder: Path
    epochs: int
    limit_seconds: float
    device: str = "cpu"


@dataclass(frozen=True)
class Outcome:
    """What came of a rung. seconds: of training and its own evaluations, up to a model in hand; first_seconds: up to the first
    evaluation with the quality that is asked for, None where nobody asked on the way. hit_at_20: of the model, at the end.

    evaluating_seconds: of the rung's evaluations over all users, one after each epoch.
    busy_cores: how many processors others kept from it, in the mean of its whole life; figures of a busy machine mislead.
    peak_bytes: the most private memory of its processes together; device_bytes: the most on a GPU, where torch counted it.
    """

    seconds: float
    hit_at_20: float
    peak_bytes: int
    busy_cores: float
    epochs: int
    is_stopped: bool
    evaluating_seconds: float = 0.0
    evaluations: list[dict[str, float]] = field(default_factory=list)
    device_bytes: int = 0

    def first_seconds(self, target: float) -> float | None:
        return next((one["seconds"] for one in self.evaluations if one["hit_at_20"] >= target), None)


Run = Callable[[Ground, int], Outcome]


@dataclass(frozen=True)
class Rung:
    """One step of the ladder and how it is run, with a seed. is_quick: so short that the median of several seeds is told."""

    step: str
    run: Run
    is_quick: bool = False


def lay_ground(corpus: Corpus, folder: Path, epochs: int, limit_seconds: float, device: str = "cpu") -> Ground:
    """Write what the rungs in PyTorch read: a pair of a user and an item for each token, counts, and the question."""
    folder.mkdir()
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
    return Ground(corpus, folder, epochs, limit_seconds, device)


def run_torch(ground: Ground, seed: int, way: Way) -> Outcome:
    """A loop in PyTorch."""
    way = dataclasses.replace(
        way, epochs=ground.epochs, limit_seconds=ground.limit_seconds, seed=seed, device=ground.device
    )
    command = ["tests.benchmarks.ladder_torch", str(ground.folder), json.dumps(dataclasses.asdict(way))]
    told = run_watched(command)
    users, items = (np.load(ground.folder / f"trained_{name}.npy") for name in ("users", "items"))
    return Outcome(**told, hit_at_20=hit_at_20(ground.corpus, Vectors(users, items, 0.0)))


def run_trainer(ground: Ground, seed: int, is_sharded: bool = False, num_workers: int = 1, **settings: Any) -> Outcome:
    """`python -m surf2vec.trainer` as it is: what it looks at on the way is the held-out loss of its own fixed sample.

    is_sharded: with so little memory that users come and go in chunks; several workers are started by torchrun.
    """
    memory = budget(ground, seed) if is_sharded else PLENTY
    command = trainer_command(ground, memory, settings | {"seed": seed})
    if num_workers > 1:
        start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_workers), "-m"]
        command = [*start, *command]
    told = run_watched(command)
    if is_sharded and told["plan"]["num_chunks"] == 1:
        raise SystemExit(f"{command} was to train in several chunks, but had room for all users")
    return Outcome(
        seconds=told["train_seconds"] * (1 + told["commit_stall"]), hit_at_20=hit_at_20(ground.corpus, read_store(ground)),
        peak_bytes=told["peak_bytes"], busy_cores=told["busy_cores"],
        epochs=told["stopped_after_epoch"] or ground.epochs, is_stopped=False,
    )  # fmt: skip


def budget(ground: Ground, seed: int) -> str:
    """Bytes that hold all but half of the users' rows: what a plan for one epoch in plenty of memory says, less that."""
    plan = run_watched(trainer_command(ground, PLENTY, {"seed": seed, "epochs": 1}))["plan"]
    return str(plan["peak_bytes"] - plan["slot_bytes"] // 2)


def trainer_command(ground: Ground, memory: str, settings: dict[str, Any]) -> list[str]:
    """The trainer into an empty store, within so much memory."""
    store, config = begin_store(ground, settings)
    folders = ["--corpus", str(ground.corpus.folder), "--store", str(store), "--config", str(config)]
    return ["surf2vec.trainer", *folders, "--device", ground.device, "--host-memory", memory]


def begin_store(ground: Ground, settings: dict[str, Any]) -> tuple[Path, Path]:
    """Where the trainer's store will be, empty, and its settings in a file."""
    store, config = ground.folder / "store", ground.folder / "config.json"
    shutil.rmtree(store, ignore_errors=True)
    config.write_text(json.dumps({"threads": THREADS, "epochs": ground.epochs} | SETTINGS | settings))
    return store, config


def read_store(ground: Ground) -> Vectors:
    generation = open_generation(ground.folder / "store")
    users = np.concatenate([generation.read_users(p) for p in range(ground.corpus.num_partitions)])
    return Vectors(users, generation.read_items(), seconds=0.0)


def hit_at_20(corpus: Corpus, vectors: Vectors) -> float:
    return float(np.mean(answer_held_out(corpus, vectors).ranks <= 20))


def run_watched(arguments: list[str]) -> dict[str, Any]:
    """The JSON that `python -m ...` prints; its `peak_bytes` and `busy_cores` (see Outcome) as seen from here."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=log, env=os.environ | ENVIRONMENT)
        peak_bytes, start, busy, own = 0, time.perf_counter(), busy_seconds(), os.times()
        while process.poll() is None:
            peak_bytes = max(peak_bytes, family_bytes(process.pid))
            try:
                process.wait(WATCH_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        for file in (out, log):
            file.seek(0)
        if process.returncode:
            raise SystemExit(f"{arguments} ended with {process.returncode}: {log.read().decode()[-20_000:]}")
        seconds, now = time.perf_counter() - start, os.times()
        own_seconds = now.children_user + now.children_system - own.children_user - own.children_system
        busy_cores = max(0.0, (busy_seconds() - busy - own_seconds) / seconds)
        return json.loads(out.read()) | {"peak_bytes": peak_bytes, "busy_cores": busy_cores}


def busy_seconds() -> float:
    """Seconds that this machine's processors worked since its start, all of them added up."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def family_bytes(process: int) -> int:
    """Anonymous and shared memory of a process and all that it started; what several of them share counts once.

    Those that a process started are known by its main thread. 0 for one that is no more.
    """
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    except OSError:
        return 0
    own = sum(int(kilobytes) for kilobytes in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", rollup, re.MULTILINE))
    return 1024 * own + sum(family_bytes(int(child)) for child in children)


STOPPING = {"patience": PATIENCE}

RUNGS = (
    Rung("plain DataLoader loop", partial(run_torch, way=Way())),
    Rung("shared negatives", partial(run_torch, way=Way(is_shared=True))),
    Rung("the trainer", partial(run_trainer, **STOPPING), is_quick=True),
    Rung("sharded state", partial(run_trainer, is_sharded=True, **STOPPING), is_quick=True),
    Rung("more workers", partial(run_trainer, num_workers=WORKERS, threads=1, **STOPPING), is_quick=True),
)
