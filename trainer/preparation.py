"""What comes before the first token: compiling the kernel, measuring the machine, looking at memory and disk, the plan."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.corpus import Corpus
from trainer.job import Job
from trainer.kernels import Kernel
from trainer.kernels.accumulation import train_in_steps
from trainer.kernels.signature import Pass
from trainer.memory import private_bytes
from trainer.objectives import make_sampling
from trainer.plan import Budget, Division, Plan, plan_training
from trainer.rates import measure_rates
from trainer.rows import begin_items, begin_users
from trainer.sizes import Sizes, Work, training_sizes
from trainer.trees import make_tree


def make_plan(
    kernel: Kernel, config: TrainConfig, work: Work, sizes: Sizes, memory_bytes: tuple[int, int | None], folder: Path,
    began: Division | None = None,
) -> Plan:  # fmt: skip
    """The plan for this machine as it is now, with its rates; memory_bytes: the budgets of the process and of the GPU;
    folder: where the store is or will be. Raises ResourceError when nothing fits.
    """
    stat = os.statvfs(folder)
    num_users = max(1, sum(work.users))
    all_tokens = work.num_tokens * work.epochs
    rates = measure_rates(kernel, config, sizes.num_items, work.num_tokens / num_users, all_tokens, folder)
    budget = Budget(memory_bytes[0], private_bytes(), stat.f_bavail * stat.f_frsize, memory_bytes[1])
    return plan_training(work, sizes, budget, rates, began)


def plan_job(
    kernel: Kernel, job: Job, corpus: Corpus, counts: NDArray[np.int64], manifest: dict[str, Any] | None
) -> Plan:
    """The plan for a job; manifest: of the generation that it goes on from. Raises ResourceError when nothing fits."""
    config = job.training_config
    began = Division(manifest["plan"]["chunk_partitions"], manifest["num_blocks"]) if manifest else None
    sizes = training_sizes(config, corpus.num_items, make_tree(config, counts))
    work = Work(corpus.users.tolist(), int(corpus.tokens.sum()), config.epochs, config.commit_seconds)
    memory_bytes = job.host_memory_bytes, job.device_memory_bytes
    return make_plan(kernel, config, work, sizes, memory_bytes, job.store_dir, began)


def warm_up(kernel: Kernel, config: TrainConfig) -> None:
    """Let the kernel compile on one user without tokens, so that the clock measures training alone."""
    one = np.zeros(1, dtype=np.int64)
    tree = make_tree(config, one + 1)
    items = begin_items(config, 1, 1)
    work = Pass(
        config=config, tokens=np.zeros(1, dtype=np.int32), starts=one, ends=one, hashes=one.astype(np.uint64), order=one,
        alphas=np.zeros(1, dtype=np.float32), sampling=make_sampling(one + 1, config), tree=tree, recency=0.0, epoch_key=0,
    )  # fmt: skip
    train_in_steps(kernel.train_users, begin_users(config, work.hashes), items, work)
