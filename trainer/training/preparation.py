"""Prepares a training: its state in the store, its plan."""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.gensim.warm_start import WarmStart, read_warm_start
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.plan.alone import Budget, Division, Plan, plan_training
from surf2vec.trainer.plan.prediction import Rates, known_rates
from surf2vec.trainer.plan.sharing import Share, share_users
from surf2vec.trainer.plan.sizes import Work, training_sizes
from surf2vec.trainer.plan.together import SharingPlan, WorkerSpec, form_team, plan_together
from surf2vec.trainer.store.generation import Generation, has_generation, open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.system.memory import context_bytes, limit_device_memory, private_bytes
from surf2vec.trainer.training.job import Job, find_generation, identity
from surf2vec.trainer.training.record import Record, read_record
from surf2vec.trainer.training.redivide import epochs_done, redivide, sharing_of
from surf2vec.trainer.training.schedule import Schedule
from surf2vec.trainer.workers.group import Workers, run_on_first


@dataclass
class TrainingState:
    """The state of a training. generation: its last commit in the store, if any."""

    identity: str
    warm_start: WarmStart | None
    generation: Generation | None
    record: Record

    @property
    def manifest(self) -> dict[str, Any]:
        return self.generation.manifest if self.generation else {}

    @property
    def is_done(self) -> bool:
        return self.manifest.get("stage", "training") != "training"


def find_state(job: Job, corpus: Corpus, rank: int) -> TrainingState:
    """Read the state of this training from its store; rank: of this worker."""
    path = job.config.items_from
    warm_start = job.warm_start or (read_warm_start(Path(path)) if path else None)
    name = identity(corpus, job.config, warm_start.digest if warm_start else job.start)
    generation = find_generation(job.store_dir, name)
    record = read_record(generation.manifest if generation else {}, rank)
    return TrainingState(name, warm_start, generation, record)


def prepare_resume(
    state: TrainingState, schedule: Schedule, store_dir: Path, workers: Workers, on_event: OnEvent
) -> None:
    """Complete what a crash interrupted, and redivide the committed state if this schedule divides it differently."""
    generation, best = state.generation, state.record.best
    if generation is None:
        return
    if workers.is_first and best and best["generation"] == generation.generation:
        pin_generation(store_dir, "best")  # a crash happened between its commit and its pin
    manifest, num_workers, begun_by = generation.manifest, workers.num, sharing_of(generation.manifest).num_workers
    is_same_number = num_workers == begun_by or not generation.position
    if not is_same_number or schedule.plan.num_blocks != manifest["num_blocks"]:
        run_on_first(workers, lambda: redivide(generation, schedule))
        if generation.position:
            ended, share = epochs_done(manifest, schedule.config.epochs)
            begins = f", of which {share:.0%} was done, starts again" if share else " begins"
            log(on_event, f"workers were {begun_by} and are {num_workers} now: epoch {ended + 1}{begins}")
        state.generation = open_generation(store_dir)
        state.record = read_record(state.generation.manifest, workers.rank)


def divide_work(
    kernel: Kernel, job: Job, corpus: Corpus, counts: NDArray[np.int64], manifest: dict[str, Any], workers: Workers
) -> tuple[Plan, Share]:
    """Return this worker's plan and share of the users; manifest: of the resumed generation, or empty.

    Raises ResourceError when nothing fits.
    """
    config, memory_bytes = job.training_config, (job.host_memory_bytes, job.device_memory_bytes)
    sizes = training_sizes(config, corpus.num_items, make_tree(config, counts))
    is_resumed = bool(manifest) and sharing_of(manifest).num_workers == workers.num

    def work_of(partitions: NDArray[np.int64]) -> Work:
        users, tokens = corpus.users[partitions].tolist(), corpus.tokens[partitions].tolist()
        return Work(users, tokens, config.epochs, config.commit_seconds)

    if not workers.is_alone:
        connect_devices(workers, kernel)
    budget = find_budget(kernel, memory_bytes, job.store_dir, job.process_bytes)
    rates = find_rates(kernel, config, job.store_dir)
    if workers.is_alone:
        division = Division(manifest["plan"]["chunk_partitions"], manifest["num_blocks"]) if is_resumed else None
        plan = plan_training(work_of(np.arange(corpus.num_partitions)), sizes, budget, rates, division)
        return plan, share_users(0, corpus.tokens, [1.0])
    resumed_from = None
    if is_resumed and manifest["position"]:
        places = manifest["plan"].get("places_per_chunk") or manifest["plan"]["chunk_partitions"]
        resumed_from = SharingPlan(sharing_of(manifest), manifest["num_blocks"], places)
    facts = workers.gather_json({"budget": asdict(budget), "rates": asdict(rates)})
    budgets = [Budget(**fact["budget"]) for fact in facts]
    weights = [float(each.device_bytes or each.host_bytes) for each in budgets]
    if resumed_from:
        weights = list(resumed_from.sharing.weights)
    share = share_users(workers.rank, corpus.tokens, weights)
    members = [
        WorkerSpec(work_of(share.partitions[rank]), budgets[rank], Rates(**fact["rates"]))
        for rank, fact in enumerate(facts)
    ]
    return plan_together(form_team(members, weights, share, config), sizes, resumed_from)[workers.rank], share


def find_budget(kernel: Kernel, memory_bytes: tuple[int, int | None], folder: Path, process_bytes: int = 0) -> Budget:
    """Return the budget, of host and GPU, on this machine. Limits torch's memory on a GPU to it.

    process_bytes: the process takes that much for itself, or what it has now if that is more.
    """
    taken_bytes, process_bytes = context_bytes(kernel.free_bytes), max(private_bytes(), process_bytes)
    budget = Budget(memory_bytes[0], process_bytes, shutil.disk_usage(folder).free, memory_bytes[1], taken_bytes)
    if budget.device_bytes:
        limit_device_memory(budget.device_bytes, budget.context_bytes)
    return budget


def find_rates(kernel: Kernel, config: TrainConfig, store_dir: Path) -> Rates:
    """Return the rates by the last training in the store, if there is one."""
    last = open_generation(store_dir).manifest if has_generation(store_dir) else {}
    return known_rates(last, config, kernel.name, config.threads or os.cpu_count() or 1)


def connect_devices(workers: Workers, kernel: Kernel) -> None:
    """Sum a number over all workers, on the device of the rows they exchange: NCCL then has the memory that it takes."""
    import torch

    workers.wait(workers.add_up(torch.zeros(1, device=kernel.device or "cpu")))
