"""Compiles the kernel, and tries it on one made-up user, in a process of its own where that leaves something behind.

    python -m surf2vec.trainer.training.warm_up KERNEL SETTINGS    settings as JSON; prints why the kernel cannot run here, if so

Compiling the CPU kernel leaves 300 MB in its process. A trial of the GPU kernel leaves a context on the card, and a driver that
aborts ends its process.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import mix_array
from surf2vec.trainer.errors import ResourceError, SurfError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.kernels import Kernel, pick_kernel
from surf2vec.trainer.kernels.failures import explain_failures
from surf2vec.trainer.kernels.first_rows import at_rest, begin_items, begin_trail, begin_users
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import TrailTables, make_sampling, make_trail_tables
from surf2vec.trainer.model.rows import Items, Rows, TrailItems
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.training.curve import Targets

TRIAL_SECONDS = 300
"""The time limit of a trial. Triton compiles two programs and its driver in less than a minute."""


def warm_up(kernel: Kernel, config: TrainConfig, on_event: OnEvent = ignore_event) -> float:
    """Compile the kernel, or load it from the cache. Returns the seconds. Raises ResourceError if a GPU cannot run it."""
    started = time.perf_counter()
    if kernel.device is not None and config.interest_size:
        try_kernel(kernel, config)
    if kernel.device is None or config.trail_size:
        from surf2vec.trainer.kernels import cpu  # numba takes half a second to import

        if not cpu.is_compiled():
            log(on_event, "compiling the kernel, once for this installation")
            _run_apart("cpu", config)  # what fails there fails here as well
    load_kernel(kernel, config)
    return time.perf_counter() - started


def load_kernel(kernel: Kernel, config: TrainConfig) -> None:
    """Train a made-up user without tokens."""
    users, items, trail, tables, work = _make_up_work(config, length=0)
    if config.interest_size:
        kernel.train_users(users, items, work)
    if config.trail_size:
        from surf2vec.trainer.kernels.cpu import train_trail

        train_trail(trail, work, tables, config.trail_backward)
    at_rest(config, 0, work.hashes, users)


def try_kernel(kernel: Kernel, config: TrainConfig) -> None:
    """Train one made-up user with a GPU kernel. Raises ResourceError, with a remedy, when it fails or ends with no numbers."""
    users, items, trail, tables, work = _make_up_work(config, length=8)
    with explain_failures(lambda: "one made-up user"):
        kernel.train_users(users, items, work)
        if config.trail_size and kernel.gpu:
            kernel.gpu.train_trail(trail, work, tables, config.trail_backward)
        if config.dtype == "bfloat16" and kernel.gpu:
            kernel.gpu.round_to_bfloat16(users, work)
        if not (np.isfinite(users.vectors).all() and np.isfinite(items.outputs.vectors).all()):
            raise ArithmeticError("the vectors that it returned are not finite")


@cache
def try_apart(config: TrainConfig) -> None:
    """Try the GPU kernel in a new process, once for the same settings. Raises ResourceError when it fails."""
    try:
        done = _run_apart("gpu", config, TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"a trial of the GPU kernel with one user did not end within {TRIAL_SECONDS} s: look with nvidia-smi for what "
            "else uses the card, or train on the CPU"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        crashed = f"a trial of the GPU kernel with one user ended with {done.returncode} ({last}): train on the CPU"
        raise ResourceError(done.stdout.strip() or crashed)


def _run_apart(kernel: str, config: TrainConfig, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """Run this module in a new process, at most so many seconds."""
    command = [sys.executable, "-m", "surf2vec.trainer.training.warm_up", kernel, json.dumps(asdict(config))]
    modules = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, modules)), "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def _make_up_work(config: TrainConfig, length: int) -> tuple[Rows, Items, TrailItems, TrailTables, Pass]:
    """Return a made-up user with `length` tokens, items, the trail's items with their tables, and a pass over them."""
    num_items, hashes = max(1, length), mix_array(np.arange(1, dtype=np.uint64))
    counts, offsets = np.ones(num_items, dtype=np.int64), np.array([0, length])
    tree = make_tree(config, counts)
    histories = Histories(hashes, np.arange(length, dtype=np.int32), offsets, offsets[1:], np.zeros(1, dtype=bool))
    alphas, targets = np.full(1, config.alpha, dtype=np.float32), Targets(config, make_sampling(counts, config), tree)
    work = targets.make_pass(histories, np.arange(1), alphas, config.used_recency, epoch=0)
    items = begin_items(config, num_items, tree.num_rows if tree else num_items)
    trail = begin_trail(config, num_items if config.trail_size else 0)
    return begin_users(config, hashes), items, trail, make_trail_tables(counts, config), work


def main() -> int:
    config = TrainConfig(**json.loads(sys.argv[2]))
    try:
        kernel = pick_kernel(sys.argv[1], config)
        (load_kernel if kernel.device is None else try_kernel)(kernel, config)
    except SurfError as error:
        print(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
