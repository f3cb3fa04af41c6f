"""Where a training begins: what its store holds of it, the plan, and all that has to be there before the first visit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.events import OnEvent, tell
from trainer.gensim.warm_start import WarmStart, apply_warm_start, read_warm_start
from trainer.kernels import Kernel, pick_kernel
from trainer.store.generation import Generation, open_generation
from trainer.store.manifests import next_generation
from trainer.store.tokens import Corpus
from trainer.store.writer import Writer, pin_generation
from trainer.system.memory import limit_device_memory
from trainer.training.course import Course
from trainer.training.engine import Engine, make_engine
from trainer.training.item_blocks import ItemBlocks
from trainer.training.job import Job, effective_recency, find_generation, identity
from trainer.training.preparation import divide_work, warm_up
from trainer.training.record import Record, read_record
from trainer.training.redivide import epochs_done, is_divided_otherwise, redivide, sharing_of
from trainer.training.slots import Background, ItemSlots, Slots
from trainer.training.team import Team, make_team
from trainer.workers.group import Workers, first_does


@dataclass
class Standing:
    """How far a training is. generation: what its store holds of it; num_positions: of all epochs, as it was divided last."""

    identity: str
    warm_start: WarmStart | None
    generation: Generation | None
    record: Record
    num_positions: int

    @property
    def is_done(self) -> bool:
        return self.record.position == self.num_positions or self.record.stopped_after_epoch is not None

    @property
    def manifest(self) -> dict[str, Any]:
        return self.generation.manifest if self.generation else {}


@dataclass(frozen=True)
class Parts:
    """All that a training works with."""

    identity: str
    record: Record
    kernel: Kernel
    course: Course
    slots: Slots
    team: Team
    engine: Engine
    compile_seconds: float


def find_standing(job: Job, corpus: Corpus, rank: int, on_event: OnEvent) -> Standing:
    """How far this training is by its store; rank: of this worker."""
    config, path = job.training_config, job.config.items_from
    warm_start = job.warm_start or (read_warm_start(Path(path)) if path else None)
    name = identity(corpus, job.config, warm_start.digest if warm_start else job.start)
    generation = find_generation(job.store_dir, name, on_event)
    manifest = generation.manifest if generation else {}
    positions = config.epochs * corpus.num_partitions * manifest.get("num_blocks", 1)
    num_positions = manifest.get("num_positions", positions)
    return Standing(name, warm_start, generation, read_record(manifest, rank), num_positions)


def prepare(job: Job, corpus: Corpus, standing: Standing, workers: Workers, on_event: OnEvent) -> Parts:
    """Pick the kernel, make the plan, and all that goes by it. Says what was chosen and why."""
    config, store_dir = job.training_config, job.store_dir
    kernel, counts = pick_kernel(job.kernel, config), corpus.count_training_tokens()
    if job.device_memory_bytes:
        limit_device_memory(job.device_memory_bytes)
    compile_seconds = warm_up(kernel, config, on_event)
    plan, share = divide_work(kernel, job, corpus, counts, standing.manifest, workers)
    for line in (f"kernel={kernel.name}: {kernel.reason}", *plan.reasons):
        tell(on_event, line)
    recency = effective_recency(config, corpus, plan.num_blocks)
    if recency == 0 < config.recency:
        tell(on_event, "train.recency is off, as the log has no times: a user's tokens all count the same")
    blocks = ItemBlocks(config, counts, plan.num_blocks)
    course = Course(config, corpus, plan, blocks, recency, share)
    _go_on(standing, course, store_dir, workers, on_event)
    record, manifest = standing.record, standing.manifest
    items_on_disk = standing.generation.item_entries() if standing.generation else {}
    users_on_disk, number = manifest.get("users", {}), next_generation(store_dir)
    writer = Writer(store_dir, number, users_on_disk, items_on_disk, has_others=not workers.is_alone)
    background, shared_from = Background(record), manifest.get("resident_block")
    items = ItemSlots(blocks, writer, background, shared_from, workers, plan.sharing.is_sharded)
    slots = Slots(corpus, writer, items, background, plan.place_bytes)
    team = make_team(workers, course, record, blocks, items.ring)
    if record.position:
        done = f"{record.position:,} of {course.num_positions:,} {team.unit}"
        tell(on_event, f"going on where a training was stopped: {done} are done")
    engine = make_engine(kernel, corpus, blocks, record, team.exchange)
    if standing.warm_start and not standing.generation:
        num_found = apply_warm_start(items.admit(0), corpus.folder, standing.warm_start)  # there is one block then
        tell(on_event, f"{num_found:,} of {corpus.num_items:,} items begin from the vectors given")
    return Parts(standing.identity, record, kernel, course, slots, team, engine, compile_seconds)


def _go_on(standing: Standing, course: Course, store_dir: Path, workers: Workers, on_event: OnEvent) -> None:
    """Make good what a crash kept undone, and divide what was committed for this course where it is divided otherwise."""
    generation, best = standing.generation, standing.record.best
    if generation is None:
        return
    if workers.is_first and best and best["generation"] == generation.generation:
        pin_generation(store_dir, "best")  # a crash came between its commit and its pin
    if is_divided_otherwise(generation.manifest, course.plan):
        first_does(workers, lambda: redivide(generation, course))
        if generation.position:
            ended, share = epochs_done(generation.manifest, course.config.epochs)
            begins = f", of which {share:.0%} was done, begins anew" if share else " begins"
            before = sharing_of(generation.manifest).num_workers
            tell(on_event, f"workers were {before} and are {workers.num} now: epoch {ended + 1}{begins}")
        standing.generation = open_generation(store_dir)
        standing.record = read_record(standing.generation.manifest, workers.rank)
