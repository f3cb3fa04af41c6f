"""How fast workers talk here, and what a visit costs, measured beside a training: what the cost model takes of this machine.

    torchrun --standalone --nproc-per-node 2 -m tests.benchmarks.workers_rates TABLE_BYTES BLOCK_BYTES [cuda]

It prints one JSON object. With `cuda` sums are of tensors on the workers' GPUs, by NCCL, as their training sums them.

Each figure is the mean of REPEATS, each after some milliseconds of work: in training workers come to a sum a little apart, with
threads that slept, which takes longer than to send a few bytes. Bandwidth is what many bytes take beyond what a few do.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from surf2vec.trainer.__main__ import end
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.kernels.first_rows import begin_users
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.plan.schedule import user_order
from surf2vec.trainer.plan.sharing import sent_by_sum
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.workers.group import Workers, join_workers
from tests.benchmarks.own_loopback import counted
from tests.benchmarks.workers_cost import Network
from tests.benchmarks.workers_runs import TORCHRUN

REPEATS = 60
FEW_BYTES = 256
FEW = 12
"""Numbers that workers tell each other when they meet."""


def measure_here(num_workers: int, table_bytes: int, block_bytes: int, folder: Path) -> tuple[Network, float]:
    """The network between so many workers of this machine, and bytes a second that adding up touches."""
    command = [*TORCHRUN, "--nproc-per-node", str(num_workers), "-m", "tests.benchmarks.workers_rates"]
    command = counted([*command, str(table_bytes), str(block_bytes)], folder / "rates.json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measuring the network ended with {done.returncode}: {done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    return Network(**told["network"]), told["touched_bytes_per_second"]


def measure(workers: Workers, table_bytes: int, block_bytes: int, device: torch.device) -> dict[str, Any]:
    """The same, by the workers themselves; device: of the table."""

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    few, many = (torch.zeros(num_bytes // 4, device=device) for num_bytes in (FEW_BYTES, table_bytes))
    sums = [
        mean_seconds(workers, lambda numbers=numbers: (workers.wait(workers.add_up(numbers)), finish()))
        for numbers in (few, many)
    ]
    passes = [mean_seconds(workers, _passing(workers, num_bytes)) for num_bytes in (FEW_BYTES, block_bytes)]
    base, own = torch.ones_like(many), torch.empty_like(many)
    touching = mean_seconds(
        workers, lambda: (torch.sub(many, base, out=own), base.add_(own), many.copy_(base), finish())
    )
    return {
        "network": {
            "sum_bytes_per_second": sent_by_sum(table_bytes, workers.num) / (sums[1] - sums[0]),
            "pass_bytes_per_second": block_bytes / (passes[1] - passes[0]),
            "sum_seconds": sums[0], "pass_seconds": passes[0],
            "meet_seconds": mean_seconds(workers, lambda: workers.gather([0.0] * FEW)()),
        },
        "touched_bytes_per_second": 8 * table_bytes / touching,
    }  # fmt: skip


def mean_seconds(workers: Workers, work: Callable[[], object]) -> float:
    """Of something that all workers do at a time, beside their work."""
    seconds = []
    matrix = np.ones((160, 160), dtype=np.float32)
    for _ in range(REPEATS + 1):
        workers.gather([0.0])()
        for _ in range(30):  # as long as a few thousand tokens take
            matrix @ matrix
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.mean(seconds[1:])  # the first makes the connections


def _passing(workers: Workers, num_bytes: int) -> Callable[[], None]:
    out, into = np.zeros(num_bytes, dtype=np.uint8), np.zeros(num_bytes, dtype=np.uint8)

    def pass_block() -> None:
        for work in workers.pass_on(out, into):
            workers.wait(work)

    return pass_block


def measure_visit(corpus: Corpus, config: TrainConfig) -> float:
    """Seconds of a token of a micro-partition that meets a block in which none of its tokens are learned."""
    counts = corpus.count_training_tokens()
    blocks, kernel = ItemBlocks(config, counts, 2), pick_kernel("cpu", config)
    targets, items, seconds = blocks.targets(0), blocks.first_items(0), []
    sampling = replace(targets.sampling, keep=np.zeros_like(targets.sampling.keep))
    for partition in range(4):
        part = corpus.read(partition)
        users = begin_users(config, part.hashes)
        started = time.perf_counter()
        here, order = blocks.histories(part, 0), user_order(config.seed, 0, part.hashes)
        work = Pass(
            config=config, tokens=here.tokens, starts=here.starts, ends=here.ends, hashes=here.hashes, order=order,
            alphas=np.full(len(order), config.alpha, dtype=np.float32), sampling=sampling, tree=None,
            recency=config.used_recency, epoch_key=epoch_key(config.seed, 0),
        )  # fmt: skip
        kernel.train_users(users, items, work)
        seconds.append((time.perf_counter() - started) / len(part.tokens))
    return min(seconds)  # the first compiles


def main() -> int:
    device = torch.device(sys.argv[3] if len(sys.argv) > 3 else "cpu")
    workers = join_workers(on_gpu=device.type == "cuda")
    told = measure(workers, int(sys.argv[1]), int(sys.argv[2]), device)
    if workers.is_first:
        print(json.dumps(told))
    return 0


if __name__ == "__main__":
    end(main())
