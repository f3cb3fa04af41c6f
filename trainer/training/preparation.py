"""Prepares a training: its state in the store, the compiled kernel, the plan."""

import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import mix_array
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.gensim.warm_start import WarmStart, read_warm_start
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.failures import explain_failures
from surf2vec.trainer.kernels.first_rows import at_rest, begin_items, begin_trail, begin_users
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import TrailTables, make_sampling, make_trail_tables
from surf2vec.trainer.model.rows import Items, Rows, TrailItems
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.plan.alone import Budget, Division, Plan, plan_training
from surf2vec.trainer.plan.prediction import Rates, known_rates
from surf2vec.trainer.plan.sharing import Share, share_users
from surf2vec.trainer.plan.sizes import Work, training_sizes
from surf2vec.trainer.plan.together import SharingPlan, WorkerSpec, form_team, plan_together
from surf2vec.trainer.store.generation import Generation, has_generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, Histories
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.system.memory import context_bytes, limit_device_memory, private_bytes
from surf2vec.trainer.training.curve import Targets
from surf2vec.trainer.training.job import Job, find_generation, identity
from surf2vec.trainer.training.record import Record, read_record
from surf2vec.trainer.training.redivide import epochs_done, redivide, sharing_of
from surf2vec.trainer.training.schedule import Schedule
from surf2vec.trainer.workers.group import Workers, run_on_first

PATIENCE_SECONDS = 2.0
"""Seconds after which a message says that the kernel is being compiled."""


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


def warm_up(kernel: Kernel, config: TrainConfig, on_event: OnEvent = ignore_event) -> float:
    """Compile the kernel, or load it from the cache. Returns the seconds. Raises ResourceError if a GPU cannot run it.

    The CPU kernel is compiled in a daemon thread, so that a signal does not wait half a minute for the compiler.
    """
    started = time.perf_counter()
    failed: list[BaseException] = []

    def compile_all() -> None:
        try:
            users, items, trail, tables, work = _make_up_work(config, length=0)
            if config.interest_size:
                kernel.train_users(users, items, work)
            if config.trail_size:
                from surf2vec.trainer.kernels.cpu import train_trail  # numba takes half a second to import

                train_trail(trail, work, tables, config.trail_backward)
            at_rest(config, 0, work.hashes, users)
        except BaseException as error:
            failed.append(error)

    if kernel.device is not None:  # the current GPU is a state of the thread
        if config.interest_size:
            try_kernel(kernel, config)
        compile_all()
    else:
        thread = threading.Thread(target=compile_all, name="compiler", daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        if thread.is_alive() and kernel.is_compiling():
            log(on_event, "compiling the kernel, once for this installation")
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - started


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
