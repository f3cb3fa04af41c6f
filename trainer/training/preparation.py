"""Prepares a training: its state in the store, the compiled kernel, the machine's rates, the plan."""

import math
import os
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key, mix_array
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.gensim.warm_start import WarmStart, read_warm_start
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.failures import explain_failures
from surf2vec.trainer.kernels.first_rows import at_rest, begin_items, begin_trail, begin_users
from surf2vec.trainer.kernels.signature import Pass, fits_trail_program
from surf2vec.trainer.model.objectives import TrailTables, make_sampling, make_trail_tables
from surf2vec.trainer.model.rows import Items, Rows, TrailItems
from surf2vec.trainer.model.trees import make_tree
from surf2vec.trainer.plan.alone import Budget, Division, Plan, plan_training, trains_trail_on_device
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.shares import Share, share_users
from surf2vec.trainer.plan.sharing import sent_by_sum
from surf2vec.trainer.plan.sizes import Sizes, Work, training_sizes
from surf2vec.trainer.plan.together import Member, Way, form_team, plan_together
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.images import image_of, read_image, write_image
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX, raise_if_unwritten, sync_file
from surf2vec.trainer.system.memory import context_bytes, limit_device_memory, private_bytes
from surf2vec.trainer.training.course import Course
from surf2vec.trainer.training.job import Job, find_generation, identity
from surf2vec.trainer.training.record import Record, read_record
from surf2vec.trainer.training.redivide import epochs_done, redivide, sharing_of
from surf2vec.trainer.workers.group import Workers, run_on_first

PATIENCE_SECONDS = 2.0
"""Seconds after which a message says that the kernel is being compiled."""
MAX_USERS, MAX_ITEMS, MAX_TABLE_BYTES, MAX_FILE_BYTES = 20_000, 200_000, 10**8, 64 * 10**6
NETWORK_BYTES = 4 * 10**6
SHARE = 0.01
"""At most this share of the training's tokens is tried: a small training would end before the trial."""
TRY_SHARE, TRY_SECONDS = 0.02, 0.5
"""The first trial's share of the users; if it takes longer than TRY_SECONDS, there is no second trial (wide trees)."""


@dataclass
class Standing:
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


def find_standing(job: Job, corpus: Corpus, rank: int, on_event: OnEvent) -> Standing:
    """Read the state of this training from its store; rank: of this worker."""
    path = job.config.items_from
    warm_start = job.warm_start or (read_warm_start(Path(path)) if path else None)
    name = identity(corpus, job.config, warm_start.digest if warm_start else job.start)
    generation = find_generation(job.store_dir, name, on_event)
    record = read_record(generation.manifest if generation else {}, rank)
    return Standing(name, warm_start, generation, record)


def prepare_resume(standing: Standing, course: Course, store_dir: Path, workers: Workers, on_event: OnEvent) -> None:
    """Complete what a crash interrupted, and redivide the committed state if this course divides it differently."""
    generation, best = standing.generation, standing.record.best
    if generation is None:
        return
    if workers.is_first and best and best["generation"] == generation.generation:
        pin_generation(store_dir, "best")  # a crash happened between its commit and its pin
    manifest, num_workers, begun_by = generation.manifest, workers.num, sharing_of(generation.manifest).num_workers
    is_same_number = num_workers == begun_by or not generation.position
    if not is_same_number or course.plan.num_blocks != manifest["num_blocks"]:
        run_on_first(workers, lambda: redivide(generation, course))
        if generation.position:
            ended, share = epochs_done(manifest, course.config.epochs)
            begins = f", of which {share:.0%} was done, begins anew" if share else " begins"
            log(on_event, f"workers were {begun_by} and are {num_workers} now: epoch {ended + 1}{begins}")
        standing.generation = open_generation(store_dir)
        standing.record = read_record(standing.generation.manifest, workers.rank)


def warm_up(kernel: Kernel, config: TrainConfig, on_event: OnEvent = ignore_event) -> float:
    """Compile the kernel, or load it from the cache. Returns the seconds. Raises ResourceError if a GPU cannot run it.

    The CPU kernel is compiled in a daemon thread, so that a signal does not wait half a minute for the compiler.
    """
    started = time.perf_counter()
    failed: list[BaseException] = []

    def compile_all() -> None:
        try:
            users, items, trail, work = _make_up_work(config, num_items=1, num_users=1, length=0)
            _train_made_up(kernel, users, items, trail, work)
            if kernel.accelerator is None and config.interest_size:  # users are fitted to trained items later
                kernel.train_users(users, items, replace(work, update_items=False))
            at_rest(config, 0, work.hashes, users)
        except BaseException as error:
            failed.append(error)

    if kernel.accelerator is not None:  # the current GPU is a state of the thread
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
    users, items, trail, work = _make_up_work(config, num_items=8, num_users=1, length=8)
    with explain_failures():
        kernel.train_users(users, items, work)
        if config.trail_size and kernel.accelerator and fits_trail_program(config):
            from surf2vec.trainer.kernels.gpu import time_launch  # triton

            time_launch(kernel.accelerator, users, items, work, (trail, _trail_tables(trail, work)))
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
    goes_on = bool(manifest) and sharing_of(manifest).num_workers == workers.num

    def work_of(partitions: NDArray[np.int64]) -> Work:
        users, tokens = corpus.users[partitions].tolist(), corpus.tokens[partitions].tolist()
        return Work(users, tokens, config.epochs, config.commit_seconds)

    if workers.is_alone:
        division = Division(manifest["plan"]["chunk_partitions"], manifest["num_blocks"]) if goes_on else None
        work = work_of(np.arange(corpus.num_partitions))
        budget, rates = measure_machine(kernel, config, work, sizes, memory_bytes, job.store_dir)
        return plan_training(work, sizes, budget, rates, division), share_users(0, corpus.tokens, [1.0])
    began = None
    if goes_on and manifest["position"]:
        places = manifest["plan"].get("places_per_chunk") or manifest["plan"]["chunk_partitions"]
        began = Way(sharing_of(manifest), manifest["num_blocks"], places)
    budgets = workers.gather_json(job.device_memory_bytes or job.host_memory_bytes)
    weights = began.sharing.weights if began else [float(budget) for budget in budgets]
    share = share_users(workers.rank, corpus.tokens, weights)
    network = measure_network(workers, kernel)  # first, so that NCCL's memory is in the budget
    budget, rates = measure_machine(kernel, config, work_of(share.own), sizes, memory_bytes, job.store_dir)
    facts = workers.gather_json({"budget": asdict(budget), "rates": asdict(rates), "network": network})
    members = [
        Member(work_of(share.partitions[rank]), Budget(**one["budget"]), Rates(**one["rates"]), one["network"])
        for rank, one in enumerate(facts)
    ]
    return plan_together(form_team(members, weights, share, config), sizes, config, began)[workers.rank], share


def measure_machine(
    kernel: Kernel, config: TrainConfig, work: Work, sizes: Sizes, memory_bytes: tuple[int, int | None], folder: Path
) -> tuple[Budget, Rates]:
    """Return this machine's budget and rates, measured by training made-up users, and writing and reading a file.

    Limits torch's memory on a GPU to the budget.
    """
    length = max(1, round(work.num_tokens / max(1, work.num_users)))
    num_users = int(min(MAX_USERS, max(1, work.num_tokens * work.epochs * SHARE / length)))
    num_items = min(sizes.num_items, MAX_ITEMS, max(2, MAX_TABLE_BYTES // (4 * config.interest_size + 4)))

    def find_budget() -> Budget:
        stat = os.statvfs(folder)
        taken_bytes = context_bytes(kernel.accelerator.free_bytes if kernel.accelerator else None)
        return Budget(memory_bytes[0], private_bytes(), stat.f_bavail * stat.f_frsize, memory_bytes[1], taken_bytes)

    has_trail = trains_trail_on_device(work, sizes, find_budget())
    tokens_per_second = _train_moment(kernel, config, num_items, num_users, length, has_trail)
    growth = sizes.num_items / num_items  # a tree's paths become longer with it
    if config.hs and growth > 1:
        is_flat = config.tree == "two_level"
        tokens_per_second /= math.sqrt(growth) if is_flat else 1 + math.log(growth) / math.log(num_items)
    read, written = _try_disk(folder, min(MAX_FILE_BYTES, num_users * config.interest_size * 4))
    budget = find_budget()  # after the trial, whose memory counts
    if budget.device_bytes:
        limit_device_memory(budget.device_bytes, budget.context_bytes)
    return budget, Rates(tokens_per_second, read, written)


def measure_network(workers: Workers, kernel: Kernel) -> float:
    """Measure the bytes a second that a worker sends while all workers sum numbers, on the device of the rows they exchange."""
    import torch

    device = kernel.accelerator.device if kernel.accelerator else torch.device("cpu")
    numbers = torch.zeros(NETWORK_BYTES // 4, device=device)
    for _ in range(2):  # the first call connects
        started = time.perf_counter()
        workers.wait(workers.add_up(numbers))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return sent_by_sum(NETWORK_BYTES, workers.num) / (time.perf_counter() - started)


def _make_up_work(
    config: TrainConfig, num_items: int, num_users: int, length: int
) -> tuple[Rows, Items, TrailItems, Pass]:  # fmt: skip
    """Return made-up users with `length` tokens each, by Zipf's law, items, the trail's items, and a pass over them."""
    shares = 1 / np.arange(1, num_items + 1)
    bounds = np.cumsum(shares / shares.sum())
    draws = np.random.default_rng(0).random(num_users * length)
    tokens = np.minimum(np.searchsorted(bounds, draws), num_items - 1).astype(np.int32)
    counts = np.bincount(tokens, minlength=num_items) if length else np.ones(num_items, dtype=np.int64)
    offsets = np.arange(num_users + 1, dtype=np.int64) * length
    hashes = mix_array(np.arange(num_users, dtype=np.uint64))
    tree = make_tree(config, counts)
    work = Pass(
        config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:], hashes=hashes, order=np.arange(num_users),
        alphas=np.full(num_users, config.alpha, dtype=np.float32), sampling=make_sampling(counts, config), tree=tree,
        recency=config.used_recency, epoch_key=epoch_key(config.seed, 0),
    )  # fmt: skip
    items = begin_items(config, num_items, tree.num_rows if tree else num_items)
    return begin_users(config, hashes), items, begin_trail(config, num_items if config.trail_size else 0), work


def _train_moment(
    kernel: Kernel, config: TrainConfig, num_items: int, num_users: int, length: int, has_trail: bool
) -> float:
    """Measure the tokens a second in one pass over made-up users. has_trail: whether a GPU trains the trail."""
    users, items, trail, work = _make_up_work(config, num_items, num_users, length)
    for num_tried in (max(1, int(num_users * TRY_SHARE)), num_users):
        part = replace(work, order=work.order[:num_tried], alphas=work.alphas[:num_tried])
        started = time.perf_counter()
        if kernel.accelerator is None or not config.interest_size:
            _train_made_up(kernel, users, items, trail, part)
            seconds = time.perf_counter() - started
        else:
            from surf2vec.trainer.kernels.gpu import time_launch  # triton

            if not has_trail:  # it is trained on the host meanwhile
                _train_trail(trail, part)
            trail_seconds = time.perf_counter() - started
            on_gpu = (trail, _trail_tables(trail, part)) if has_trail else None
            seconds = max(trail_seconds, time_launch(kernel.accelerator, users, items, part, on_gpu))
        if seconds > TRY_SECONDS:
            break
    return length * num_tried / seconds


def _train_made_up(kernel: Kernel, users: Rows, items: Items, trail: TrailItems, work: Pass) -> None:
    """Train both parts, each if there is one."""
    if work.config.interest_size:
        kernel.train_users(users, items, work)
    _train_trail(trail, work)


def _train_trail(trail: TrailItems, work: Pass) -> None:
    if work.config.trail_size:
        from surf2vec.trainer.kernels.trail import train_trail  # numba takes half a second to import

        train_trail(trail, work, _trail_tables(trail, work), work.config.trail_backward, epoch=0)


def _trail_tables(trail: TrailItems, work: Pass) -> TrailTables:
    return make_trail_tables(np.bincount(work.tokens, minlength=len(trail.outputs.squares)), work.config)


def _try_disk(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Measure the bytes a second read from and durably written to the disk."""
    image = image_of({"vectors": np.ones(max(1, num_bytes // 4), dtype=np.float32)})
    with raise_if_unwritten(folder, f"{image.num_bytes:,} bytes to try the disk"):
        path = folder / f".rate.{os.getpid()}{TEMPORARY_SUFFIX}"
        try:
            started = time.perf_counter()
            about = write_image(path, image)
            sync_file(path)
            between = time.perf_counter()
            read_image(path, about, image.pages)
            ended = time.perf_counter()
        finally:
            path.unlink(missing_ok=True)
    return image.num_bytes / (ended - between), image.num_bytes / (between - started)
