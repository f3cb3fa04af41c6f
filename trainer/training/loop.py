"""The training, readable top to bottom: its state in the store, the plan, and one micro-partition after the other.

The state is the rows and one integer, the number of micro-partitions trained over all epochs, so a resumed run does the same
arithmetic as an uninterrupted one. With `patience`, the generation with the lowest held-out loss becomes the result.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from surf2vec.trainer.errors import ConfigError, SurfError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.gensim.warm_start import apply_warm_start
from surf2vec.trainer.kernels import Kernel, pick_kernel
from surf2vec.trainer.kernels.failures import explain_failures
from surf2vec.trainer.plan.schedule import ScheduleStep
from surf2vec.trainer.store.generation import next_generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.store.writer import (
    Writer,
    lock_store,
    open_pinned,
    pin_generation,
    remove_unreferenced,
    unpin_best,
)
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.signals import stop_on_sigterm
from surf2vec.trainer.training.curve import MAX_POINTS, Targets
from surf2vec.trainer.training.engine import Engine, FinishedPass
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.job import Job, choose_parts, describe_training, effective_recency, find_generation
from surf2vec.trainer.training.preparation import TrainingState, divide_work, find_state, prepare_resume
from surf2vec.trainer.training.record import Record
from surf2vec.trainer.training.redivide import join_item_blocks
from surf2vec.trainer.training.schedule import PartitionPass, Schedule
from surf2vec.trainer.training.slots import Background, ItemSlots, RingSlots, Slots
from surf2vec.trainer.training.team import Requests, Team, Together
from surf2vec.trainer.training.trail_slot import TrailSlot
from surf2vec.trainer.training.warm_up import warm_up
from surf2vec.trainer.workers.group import Workers, join_workers, run_on_first

if TYPE_CHECKING:  # torch takes a second to import
    from surf2vec.trainer.workers.exchange import Exchange


class StoppedError(SurfError):
    """Training stopped on request, after a commit."""

    code = "stopped"


def train(
    job: Job, on_event: OnEvent = ignore_event, *, resume: bool = True, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Train all epochs, or the remaining ones, and commit. Returns the training's part of the run's record.

    Resumes a training of the same corpus and configuration in the store; returns one that has ended. The first commit
    replaces any other generation. `stop`, or SIGTERM, stops the training at the next micro-partition's end.
    Raises ConfigError for an unfinished training when `resume` is False, ResourceError when the plan does not fit or
    the store is locked or full, DamageError for altered files, TrainingError when the loss is not finite,
    StoppedError when stopped.
    """
    workers = join_workers(on_gpu=job.kernel == "gpu")
    with lock_store(job.store_dir, workers.rank):
        if not workers.is_alone:
            run_on_first(workers, lambda: remove_unreferenced(job.store_dir))
        corpus = open_corpus(job.corpus_dir)
        job = replace(job, config=choose_parts(job.config, corpus, on_event))
        state = find_state(job, corpus, workers.rank)
        if state.record.position and not state.is_done and not resume:
            done = state.record.position / state.manifest["num_positions"]
            raise ConfigError(
                f"the store {job.store_dir} holds this training at {done:.0%}: give --resume to continue it, or another --store"
            )
        record, compile_seconds = state.record, 0.0
        if not state.is_done:
            record, compile_seconds = train_on(job, corpus, state, workers, on_event, stop)
        del state
        run_on_first(workers, lambda: join_item_blocks(job, corpus, on_event))
        generation = open_generation(job.store_dir)
        trail = generation.trail
        lags = trail.lags.vectors[: generation.config.trail_window, 0].tolist() if trail else []
        return record.record(generation.manifest) | {"compile_seconds": compile_seconds, "lags": lags}


def train_on(
    job: Job, corpus: Corpus, state: TrainingState, workers: Workers, on_event: OnEvent, stop: threading.Event | None
) -> tuple[Record, float]:
    """Train the remaining epochs. Returns the record, and the seconds of compiling. Frees the memory of training."""
    training = prepare(job, corpus, state, workers, on_event)
    try:
        with stop_on_sigterm(stop) as stop, explain_failures(training.describe_work, part="CUDA"):
            training.run(stop)
    finally:
        training.close()
    return training.record, training.compile_seconds


def prepare(job: Job, corpus: Corpus, state: TrainingState, workers: Workers, on_event: OnEvent) -> "Training":
    """Pick the kernel, make the plan, and create the training. Logs the choices with reasons."""
    config, store_dir = job.training_config, job.store_dir
    kernel, counts = pick_kernel(job.kernel, config), corpus.count_training_tokens()
    compile_seconds = warm_up(kernel, config, on_event)
    plan, share = divide_work(kernel, job, corpus, counts, state.manifest, workers)
    for line in (f"kernel={kernel.name}: {kernel.reason}", *plan.reasons):
        log(on_event, line)
    recency = effective_recency(config, corpus, plan.num_blocks)
    if recency == 0 < config.used_recency:
        log(on_event, "recency is off, as the order of a user's events says nothing: they all count the same")
    blocks = ItemBlocks(config, counts, plan.num_blocks)
    backward = 0.0 if job.schedule else config.trail_backward  # trained vectors end forward, and stay so
    schedule = Schedule(config, corpus, plan, blocks, recency, share, backward)
    prepare_resume(state, schedule, store_dir, workers, on_event)
    record, manifest = state.record, state.manifest
    writer = Writer(store_dir, next_generation(store_dir), manifest, has_others=not workers.is_alone)
    background, shared_from = Background(record), manifest.get("resident_block")
    kind = RingSlots if plan.sharing.is_sharded else ItemSlots
    items = kind(blocks, writer, background, shared_from, workers)
    parts = [TrailSlot(config, counts, writer)] if config.trail_size else []
    slots = Slots(corpus, writer, items, parts, background, plan.place_bytes)
    team = Team(schedule, record)
    if not workers.is_alone:  # workers exchange the item rows that all of them have
        num_rows = blocks.num_shared_rows if plan.sharing.is_sharded else blocks.num_outputs(0)
        team = Together(schedule, record, workers, num_rows, items)
    if record.position:
        done = f"{record.position:,} of {schedule.num_positions:,} {team.unit}"
        log(on_event, f"resuming a stopped training: {done} are done")
    engine = make_engine(kernel, schedule, record, parts, team.exchange)
    if state.warm_start and not state.generation:
        num_found = apply_warm_start(items.admit(0), corpus.folder, state.warm_start)  # there is one block then
        log(on_event, f"{num_found:,} of {corpus.num_items:,} items begin from the vectors given")
    return Training(job, state.identity, record, kernel, schedule, slots, team, engine, on_event, compile_seconds)


def make_engine(
    kernel: Kernel, schedule: Schedule, record: Record, parts: list[TrailSlot], exchange: "Exchange | None"
) -> Engine:
    """Return the engine of a kernel: in the host's memory, or on a GPU if users are trained."""
    config = schedule.config
    if kernel.device is None or not config.interest_size:
        return Engine(kernel, config, parts, exchange)
    from surf2vec.trainer.training.device_engine import DeviceEngine  # torch takes a second to import
    from surf2vec.trainer.training.device_memory import MaxSizes

    users, tokens = int(schedule.corpus.users.max()), int(schedule.corpus.tokens.max())
    sizes = MaxSizes(users, tokens, schedule.blocks.num_rows(0), schedule.plan.trail_on_device)
    return DeviceEngine(kernel, config, sizes, record, parts, exchange)


@dataclass
class Training:
    """A training in progress. block, targets: of the item block being trained; block is -1 before the first."""

    job: Job
    identity: str
    record: Record
    kernel: Kernel
    schedule: Schedule
    slots: Slots
    team: Team
    engine: Engine
    on_event: OnEvent
    compile_seconds: float
    block: int = -1
    targets: Targets = field(init=False)
    reported_position: int = 0
    clock: float = 0.0
    alpha: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.record.position == self.schedule.num_positions or self.record.stopped_after_epoch is not None

    def run(self, stop: threading.Event) -> None:
        """Train all remaining micro-partitions, in order. Commits when it is time, when stopped, and at the end."""
        position, last_commit = self.record.position, time.monotonic()
        self.reported_position, self.clock = position, time.perf_counter()
        ahead: PartitionPass | None = None
        while not self.is_done:
            step = self.schedule.step(position)
            assert step is not None, f"the schedule has no step at position {position}, but training has not ended"
            self._load_position(position, step)
            for index, partition in enumerate(self.schedule.partitions_at(step)):
                resident = self.slots.admit(partition)  # waits if a commit is writing it
                now = ahead or self.schedule.make_pass(position, index, step, resident, self.targets)
                self._record(self.engine.train(now))
                ahead = self._stage_next(now)
            position += 1
            is_time = time.monotonic() - last_commit >= self.schedule.config.commit_seconds
            if self.team.meets_at(position):
                self._record(self.engine.settle())
            requests = self._report_meetings(self.team.meet(position, Requests(stop.is_set(), is_time)))
            is_judged = bool(self.schedule.config.patience) and position % self.schedule.positions_per_epoch == 0
            if is_judged or any(requests) or position == self.schedule.num_positions:
                self._record(self.engine.settle())
                self._report_meetings(self.team.drain())
                self._judge_epoch(step.epoch) if is_judged else self._commit()
                last_commit, self.clock = time.monotonic(), time.perf_counter()
            self.slots.background.check()
            if requests.is_stopping and not self.is_done:
                self.slots.wait_for_commit()
                raise StoppedError(
                    f"stopped at {self.record.position / self.schedule.num_positions:.0%} after committing generation "
                    f"{self.slots.writer.generation - 1}: run the same command to resume"
                )
        self.slots.wait_for_commit()
        self.team.note_loads()  # includes the bytes of the last commit

    def describe_work(self) -> str:
        """Return in words what is trained, and what is committed."""
        programs = "the interest or the trail" if self.schedule.plan.trail_on_device else "the interest"
        done = f"{self.record.position} of {self.schedule.num_positions} micro-partitions"
        generation = find_generation(self.job.store_dir, self.identity)
        committed = f"generation {generation.generation}" if generation else "nothing"
        return f"{programs} or a copy after {done}, with {committed} committed"

    def close(self) -> None:
        """Stop work in progress, and the threads. Uncommitted results are lost."""
        try:
            self.engine.close()
        finally:
            self.slots.background.close()

    def _load_position(self, position: int, step: ScheduleStep) -> None:
        """Load the users and items of a position. At the start of a chunk or an item block, begin to read the next one."""
        schedule, slots, items = self.schedule, self.slots, self.slots.items
        is_first = self.block < 0
        if is_first:
            items.prefetch(step.block)  # before the users, so that training can begin with the first of them
        if schedule.plan.is_resident:
            slots.prefetch(schedule.partitions(step))
        elif (step.turn, step.place) == (0, step.chunk.start) or not slots.residents:
            wanted = schedule.partitions(step, None if step.turn else step.place)
            slots.evict([p for p in slots.residents if p not in wanted])
            slots.prefetch(wanted)
            turns_left = schedule.plan.num_blocks - 1 - step.turn
            if following := schedule.step(position + step.chunk.stop - step.place + turns_left * len(step.chunk)):
                slots.prefetch(schedule.partitions(following))
        if step.block != self.block:
            if not is_first:
                self._record(self.engine.settle())
                self.engine.update_host()
            self.targets = schedule.blocks.targets(step.block)  # while the block is still being read
            block_items, self.block = items.admit(step.block), step.block
            if following := schedule.step(position + step.chunk.stop - step.place):
                items.prefetch(following.block)
            self.engine.admit_block(block_items, self.targets)

    def _stage_next(self, now: PartitionPass) -> PartitionPass | None:
        """Make and stage the next pass; None if its micro-partition is in progress, or its item block another one."""
        position, index = (now.position + 1, 0) if now.is_last else (now.position, now.index + 1)
        step = self.schedule.step(position)
        if not self.engine.looks_ahead or step is None or step.block != now.step.block:
            return None
        partitions = self.schedule.partitions_at(step)
        if not partitions or self.engine.is_training(partitions[index]):
            return None
        ahead = self.schedule.make_pass(position, index, step, self.slots.admit(partitions[index]), now.targets)
        self.engine.stage(ahead)
        return ahead

    def _record(self, all_finished: Iterator[FinishedPass]) -> None:
        for finished in all_finished:
            self.team.count(finished)
            if finished.partition_pass.num_users:
                self.alpha = float(finished.partition_pass.work.alphas[-1])
            self.record.peak_bytes = max(self.record.peak_bytes, private_bytes())
            self._report()

    def _report_meetings(self, meetings: Iterator[Requests]) -> Requests:
        """Report progress after meetings of the workers. Returns the requests of any worker."""
        is_stopping = is_time = False
        for requests in meetings:
            is_stopping, is_time = is_stopping or requests.is_stopping, is_time or requests.is_time
            self._report()
        return Requests(is_stopping, is_time)

    def _report(self) -> None:
        """Add the seconds since the last call to the record, and report progress, if any."""
        now, record, num_positions = time.perf_counter(), self.record, self.schedule.num_positions
        record.train_seconds += now - self.clock
        if record.position != self.reported_position:
            self.reported_position = record.position
            log_progress(self.on_event, "train", record.position, num_positions, self.team.unit)
            is_point = record.position % -(-num_positions // MAX_POINTS) == 0 or self.is_done
            if is_point and any(record.curve.point_sums):
                self.on_event("train", record.add_point(self.schedule.positions_per_epoch, self.alpha))
        self.clock = time.perf_counter()

    def _judge_epoch(self, epoch: int) -> None:
        """Commit after an epoch, and pin the generation if it is the best. At the end return to the best one."""
        self.slots.wait_for_commit()
        is_last = self.record.position == self.schedule.num_positions
        is_best, is_over = self.record.judge_epoch(
            epoch, self.schedule.config.patience, is_last, self.slots.writer.generation
        )
        workers, store_dir = self.slots.items.workers, self.job.store_dir
        if is_over:
            self.record.stopped_after_epoch = epoch + 1
            best = self.record.best
            assert best is not None, "training stopped early, but no epoch is the best"
            message = f"epoch {best['epoch']} had the lowest held-out loss, {best['heldout_loss']:.4f}: it is kept"
            log(self.on_event, message)
            generation, values = open_pinned(store_dir, "best"), self._manifest()
            run_on_first(workers, lambda: self.slots.writer.commit_again(generation, values))
        else:
            self._commit()
        if is_best and not is_last:
            self.slots.wait_for_commit()
            run_on_first(workers, lambda: pin_generation(store_dir, "best"))
        if self.is_done:
            self.slots.wait_for_commit()
            run_on_first(workers, lambda: unpin_best(store_dir))

    def _commit(self) -> None:
        self.record.num_commits += 1
        with self.slots.background.stall("commit_stall_seconds"):
            self.engine.update_host()
        self.slots.commit(self._manifest())
        self.record.peak_bytes = max(self.record.peak_bytes, private_bytes())

    def _manifest(self) -> dict[str, Any]:
        """Return the values of the next manifest, without its files."""
        schedule, kernel = self.schedule, self.kernel
        about = describe_training(
            self.identity, schedule.corpus, self.job.config, schedule.recency, kernel.name, kernel.reason
        )
        about |= {
            "num_blocks": schedule.plan.num_blocks,
            "num_positions": schedule.num_positions,
            "resident_block": self.block,
            "stage": "trained" if self.is_done else "training",
            "plan": asdict(schedule.plan),
        }
        return about | self.record.to_json()
