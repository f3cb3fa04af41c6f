"""Plans a training of a given size without data, with the trainer's planner and this machine's current state."""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.root.memory import NIGHT_BYTES
from surf2vec.tasks.training.worker_processes import count_workers, pick_device
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.events import OnEvent
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.plan.alone import Budget, Plan, plan_training
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.sharing import share_users
from surf2vec.trainer.plan.sizes import Sizes, Work, training_sizes
from surf2vec.trainer.plan.together import WorkerSpec, form_team, plan_together
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.units import parse_bytes
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.preparation import divide_work, find_budget, find_rates
from surf2vec.trainer.training.warm_up import warm_up
from surf2vec.trainer.workers.group import ALONE


@dataclass(frozen=True)
class Volume:
    """The size of a training: numbers of users, items, tokens of all users, and micro-partitions."""

    users: int
    items: int
    tokens: int
    partitions: int


def plan_size(
    root: Path, volume: Volume, config: TrainConfig, resources: ResourcesConfig, num_workers: int | None = None
) -> dict[str, Any]:
    """Return the plan for a training of this size with its store on the disk of `root`, as `surf2vec plan` prints it.

    With a GPU budget the GPU kernel is planned; without a GPU, with the CPU's speed. num_workers: equal workers on machines like
    this one, each with `resources.workers` of them; by default those of one machine.
    Raises ResourceError, with the numbers and the way out, if nothing fits; ConfigError for too few micro-partitions.
    """
    folder = next(parent for parent in (root.resolve(), *root.resolve().parents) if parent.is_dir())
    device = pick_device(config, resources)
    on_machine = count_workers(device, resources)
    num_workers = num_workers or on_machine
    on_machine = min(on_machine, num_workers)
    kernel = pick_kernel(device.kernel, config)
    warm_up(kernel, config)
    tree = make_tree(config, zipf_counts(volume.items, volume.tokens)) if config.hs else None
    sizes = training_sizes(config, volume.items, tree)
    work = spread_volume(volume, config.epochs, config.commit_seconds)
    memory_bytes = parse_bytes(resources.host_memory) // on_machine, device.memory_bytes
    budget = find_budget(kernel, memory_bytes, folder, NIGHT_BYTES if num_workers == 1 else 0)
    rates = find_rates(kernel, config, root / "store")
    if num_workers == 1:
        plan = plan_training(work, sizes, budget, rates)
    else:
        if device.kernel == "cpu":
            rates = replace(rates, tokens_per_second=rates.tokens_per_second / on_machine)
        plan = plan_equal(work, sizes, config, (budget, rates), num_workers)
        among = f"{num_workers} equal workers, {on_machine} on each machine like this one, 10 Gbit/s between them; for each:"
        plan = replace(plan, reasons=(among, *plan.reasons))
    return {"kernel": kernel.name, "kernel_reason": kernel.reason, "workers": num_workers} | asdict(plan)


def plan_job(job: Job, folder: Path, on_event: OnEvent) -> Plan:
    """Return the plan that one worker would make for a training with its store in `folder`, whose disk is tried."""
    corpus, config = open_corpus(job.corpus_dir), job.training_config
    kernel = pick_kernel(job.kernel, config)
    warm_up(kernel, config, on_event)
    tried = replace(job, store_dir=folder)
    return divide_work(kernel, tried, corpus, corpus.count_training_tokens(), {}, ALONE)[0]


def plan_equal(work: Work, sizes: Sizes, config: TrainConfig, each: tuple[Budget, Rates], num_workers: int) -> Plan:
    """Return the plan of the slowest of `num_workers` workers with the same budget and rates. Pure."""
    share, weights = share_users(0, np.array(work.tokens), [1.0] * num_workers), [1.0] * num_workers
    members = []
    for own in share.partitions:
        own_work = replace(work, users=[work.users[p] for p in own], tokens=[work.tokens[p] for p in own])
        members.append(WorkerSpec(own_work, *each))
    return max(plan_together(form_team(members, weights, share, config), sizes), key=lambda plan: plan.seconds)


def spread(total: int, partitions: int, extra: float) -> list[int]:
    """Return the users or tokens of each micro-partition: equal shares, but the first has this share more, the last less."""
    shares = [total // partitions + (p < total % partitions) for p in range(partitions)]
    moved = min(math.ceil(extra * shares[0]), shares[-1]) if partitions > 1 else 0
    shares[0] += moved
    shares[-1] -= moved
    return shares


def spread_volume(volume: Volume, epochs: int, commit_seconds: float) -> Work:
    """Return the work; the largest micro-partition has 4 standard deviations of a hash more users, and a quarter more tokens."""
    users = spread(volume.users, volume.partitions, 4 / math.sqrt(max(1, volume.users / volume.partitions)))
    return Work(users, spread(volume.tokens, volume.partitions, 0.25), epochs, commit_seconds)


def zipf_counts(num_items: int, num_tokens: int) -> np.ndarray:
    """Return the tokens of each item by Zipf's law, int64[V], to build a tree before the items are known."""
    shares = 1 / np.arange(1, num_items + 1)
    return np.maximum(shares * (num_tokens / shares.sum()), 1).astype(np.int64)
