"""What comes before the first token: compiling the kernel, measuring the machine, looking at memory and disk, the plan."""

import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.events import OnEvent, ignore_event, tell
from trainer.kernels import Kernel
from trainer.kernels.first_rows import at_rest, begin_items, begin_users
from trainer.kernels.signature import Pass
from trainer.model.objectives import make_sampling
from trainer.model.trees import make_tree
from trainer.plan.alone import Budget, Division, Plan, plan_training
from trainer.plan.prediction import Rates
from trainer.plan.shares import Share, share_alone, share_users
from trainer.plan.sharing import Wire
from trainer.plan.sizes import Sizes, Work, training_sizes
from trainer.plan.together import Member, Way, form_team, plan_together
from trainer.store.tokens import Corpus
from trainer.system.memory import private_bytes
from trainer.training.job import Job
from trainer.training.rates import measure_network, measure_rates
from trainer.training.redivide import sharing_of
from trainer.workers.group import Workers

PATIENCE_SECONDS = 2.0
"""After so long a person is told that the kernel is being compiled."""


def make_plan(
    kernel: Kernel, config: TrainConfig, work: Work, sizes: Sizes, memory_bytes: tuple[int, int | None], folder: Path,
    began: Division | None = None,
) -> Plan:  # fmt: skip
    """The plan for this machine as it is now, with its rates; memory_bytes: the budgets of the process and of the GPU;
    folder: where the store is or will be. Raises ResourceError when nothing fits.
    """
    budget, rates = look_around(kernel, config, work, sizes, memory_bytes, folder)
    return plan_training(work, sizes, budget, rates, began)


def look_around(
    kernel: Kernel, config: TrainConfig, work: Work, sizes: Sizes, memory_bytes: tuple[int, int | None], folder: Path
) -> tuple[Budget, Rates]:
    """What this machine has, and how fast it is."""
    stat = os.statvfs(folder)
    num_users = max(1, work.num_users)
    all_tokens = work.num_tokens * work.epochs
    rates = measure_rates(kernel, config, sizes.num_items, work.num_tokens / num_users, all_tokens, folder)
    return Budget(memory_bytes[0], private_bytes(), stat.f_bavail * stat.f_frsize, memory_bytes[1]), rates


def plan_team(
    kernel: Kernel,
    job: Job,
    corpus: Corpus,
    counts: NDArray[np.int64],
    manifest: dict[str, Any],
    workers: Workers,
) -> tuple[Plan, Share]:
    """This worker's plan and share of the users, after all workers told each other what they have."""
    config = job.training_config
    began = _began_with(manifest, workers.num)
    budgets = workers.gather_json(job.device_memory_bytes or job.host_memory_bytes)
    weights = began.sharing.weights if began else [float(budget) for budget in budgets]
    share = share_users(workers.rank, corpus.tokens, weights)
    sizes = training_sizes(config, corpus.num_items, make_tree(config, counts))
    own = _work_of(corpus, config, share.own)
    memory_bytes = job.host_memory_bytes, job.device_memory_bytes
    budget, rates = look_around(kernel, config, own, sizes, memory_bytes, job.store_dir)
    told = workers.gather_json({"budget": asdict(budget), "rates": asdict(rates), "network": measure_network(workers)})
    members = []
    for rank, one in enumerate(told):
        work = _work_of(corpus, config, share.partitions[rank])
        members.append(Member(work, Budget(**one["budget"]), Rates(**one["rates"]), one["network"]))
    team = form_team(members, weights, share, config)
    return plan_together(team, sizes, config, began)[workers.rank], share


def _work_of(corpus: Corpus, config: TrainConfig, partitions: NDArray[np.int64]) -> Work:
    """What is to be trained of these micro-partitions."""
    users, tokens = corpus.users[partitions].tolist(), corpus.tokens[partitions].tolist()
    return Work(users, tokens, config.epochs, config.commit_seconds)


def _began_with(manifest: dict[str, Any], num_workers: int) -> Way | None:
    """The way of sharing of a training that as many workers began and go on with."""
    if not manifest.get("position") or sharing_of(manifest).num_workers != num_workers:
        return None
    plan = manifest["plan"]
    places = plan.get("places_a_chunk") or plan["chunk_partitions"]
    return Way(sharing_of(manifest), manifest["num_blocks"], places, Wire())


def divide_work(
    kernel: Kernel, job: Job, corpus: Corpus, counts: NDArray[np.int64], manifest: dict[str, Any], workers: Workers
) -> tuple[Plan, Share]:
    """This worker's plan and share of the users; manifest: of the generation that it goes on from, empty where there is none.

    Raises ResourceError when nothing fits.
    """
    if workers.is_alone:
        return plan_job(kernel, job, corpus, counts, manifest), share_alone(corpus.tokens)
    return plan_team(kernel, job, corpus, counts, manifest, workers)


def plan_job(kernel: Kernel, job: Job, corpus: Corpus, counts: NDArray[np.int64], manifest: dict[str, Any]) -> Plan:
    """The plan for one worker; manifest: of the generation that it goes on from. Raises ResourceError when nothing fits."""
    config = job.training_config
    began = None
    if manifest and sharing_of(manifest).num_workers == 1:
        began = Division(manifest["plan"]["chunk_partitions"], manifest["num_blocks"])
    sizes = training_sizes(config, corpus.num_items, make_tree(config, counts))
    work = _work_of(corpus, config, np.arange(corpus.num_partitions))
    memory_bytes = job.host_memory_bytes, job.device_memory_bytes
    return make_plan(kernel, config, work, sizes, memory_bytes, job.store_dir, began)


def warm_up(kernel: Kernel, config: TrainConfig, on_event: OnEvent = ignore_event) -> float:
    """Compile the kernel, or read what was compiled before, so that the clock measures training alone; return the seconds.

    The CPU's is compiled in a thread that nobody waits for at the end: a signal would wait half a minute for the compiler.
    """
    started = time.perf_counter()
    if kernel.accelerator is not None:  # a GPU is chosen by the thread
        _train_nothing(kernel, config)
        return time.perf_counter() - started
    failed: list[BaseException] = []

    def compile_all() -> None:
        try:
            _train_nothing(kernel, config)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=compile_all, name="compiler", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if thread.is_alive() and kernel.is_compiling():
        tell(on_event, "compiling the kernel, once on this machine")
    thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - started


def _train_nothing(kernel: Kernel, config: TrainConfig) -> None:
    """Train one user without tokens."""
    one = np.zeros(1, dtype=np.int64)
    tree = make_tree(config, one + 1)
    items = begin_items(config, 1, 1)
    work = Pass(
        config=config, tokens=np.zeros(1, dtype=np.int32), starts=one, ends=one, hashes=one.astype(np.uint64), order=one,
        alphas=np.zeros(1, dtype=np.float32), sampling=make_sampling(one + 1, config), tree=tree, recency=0.0, epoch_key=0,
    )  # fmt: skip
    users = begin_users(config, work.hashes)
    kernel.train_users(users, items, work)
    at_rest(config, 0, work.hashes, users)
