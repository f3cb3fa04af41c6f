"""The training, readable top to bottom: where it stands, the plan, and one micro-partition after the other.

Its position is one integer, the micro-partitions done over all epochs. State is the rows and that integer: a run that
was killed and resumed does the same arithmetic as one that was not. With `patience`, the generation with the lowest
held-out loss is pinned as "best" at its epoch's end; the training ends with it.
"""

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import ConfigError, SurfError
from trainer.events import OnEvent, ignore_event
from trainer.gensim.warm_start import WarmStart, apply_warm_start, read_warm_start
from trainer.kernels import Kernel, pick_kernel
from trainer.plan.schedule import Step
from trainer.plan.shares import share_alone
from trainer.plan.sharing import Sharing
from trainer.store.generation import Generation, has_generation, is_outdated, open_generation
from trainer.store.manifests import next_generation
from trainer.store.tokens import Corpus, open_corpus
from trainer.store.writer import Writer, lock_store, open_pinned, pin_generation, remove_unreferenced, unpin_best
from trainer.system.memory import limit_device_memory, private_bytes
from trainer.system.signals import stop_on_sigterm
from trainer.training.course import Course, Ended, Visit
from trainer.training.curve import MAX_POINTS, Targets
from trainer.training.engine import conclude, make_engine
from trainer.training.item_blocks import ItemBlocks
from trainer.training.job import Job, effective_recency, identity
from trainer.training.join_blocks import join_item_blocks
from trainer.training.patience import judge_epoch
from trainer.training.preparation import plan_job, plan_team, warm_up
from trainer.training.record import Record, read_record
from trainer.training.redivide import is_divided_otherwise, redivide, tell_change
from trainer.training.slots import Slots
from trainer.workers.group import Workers, join_workers
from trainer.workers.joint_commit import first_does

if TYPE_CHECKING:  # torch takes a second to import, and one worker does without
    from trainer.training.worker_part import Heard, Together


class StoppedError(SurfError):
    """Training was asked to stop, and did so after a commit."""

    code = "stopped"


def train(
    job: Job, on_event: OnEvent = ignore_event, *, resume: bool = True, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Train all epochs, or what is left of them, and commit; returns what the run's story records of it.

    A training of the same corpus and configuration that is in the store is resumed, or answered when it has ended;
    any other generation there is replaced by the first commit. `stop`, or SIGTERM, ends it at the next micro-partition's end.
    Raises ConfigError for an unfinished training when `resume` is False, ResourceError when the plan does not fit or
    the store is locked or full, DamageError for altered files, TrainingError when the loss is not finite,
    StoppedError when stopped.
    """
    workers = join_workers(on_gpu=job.kernel == "gpu")
    with lock_store(job.store_dir, workers.rank):
        if not workers.is_alone:
            first_does(workers, lambda: remove_unreferenced(job.store_dir))
        corpus = open_corpus(job.corpus_dir)
        training = Training(job, corpus, on_event, workers)
        if training.record.position and not training.is_done and not resume:
            raise ConfigError(
                f"the store {job.store_dir} holds this training at {training.record.position / training.num_positions:.0%}: "
                "give --resume to go on with it, or another --store"
            )
        if not training.is_done:
            training.prepare()
            try:
                with stop_on_sigterm(stop) as stop:
                    training.run(stop)
            finally:
                training.close()
        record, compile_seconds = training.record, training.compile_seconds
        del training  # what it holds makes room for the items in one piece
        first_does(workers, lambda: join_item_blocks(job, corpus, on_event))
        return record.story(open_generation(job.store_dir).manifest) | {"compile_seconds": compile_seconds}


class Training:
    """One training: what is in memory, and how far it is. workers: who trains it together with this one."""

    def __init__(self, job: Job, corpus: Corpus, on_event: OnEvent, workers: Workers) -> None:
        self.workers = workers
        self.job, self.config, self.corpus, self.on_event = job, job.training_config, corpus, on_event
        path = job.config.items_from
        self.warm_start = job.warm_start or (read_warm_start(Path(path)) if path else None)
        self.identity = identity(corpus, job.config, self.warm_start.digest if self.warm_start else job.start)
        self.generation = self._committed()
        manifest = self.generation.manifest if self.generation else {}
        positions = self.config.epochs * corpus.num_partitions * manifest.get("num_blocks", 1)
        self.num_positions = manifest.get("num_positions", positions)
        self.record = read_record(manifest, workers.rank)
        self.targets: Targets | None = None
        self.made_ahead: Visit | None = None
        self.together: Together | None = None
        self.compile_seconds = 0.0

    @property
    def is_done(self) -> bool:
        return self.record.position == self.num_positions or self.record.stopped_after_epoch is not None

    def prepare(self) -> None:
        """Pick the kernel, make the plan, say what is in memory when. Says what was chosen and why."""
        config, job = self.config, self.job
        self.kernel: Kernel = pick_kernel(job.kernel, config)
        counts = self.corpus.count_training_tokens()
        if job.device_memory_bytes:
            limit_device_memory(job.device_memory_bytes)
        self.compile_seconds = warm_up(self.kernel, config, self.on_event)
        manifest = self.generation.manifest if self.generation else None
        if self.workers.is_alone:
            self.plan = plan_job(self.kernel, job, self.corpus, counts, manifest)
            share = share_alone(self.corpus.tokens)
        else:
            self.plan, share = plan_team(self.kernel, job, self.corpus, counts, manifest, self.workers)
        for line in (f"kernel={self.kernel.name}: {self.kernel.reason}", *self.plan.reasons):
            self.on_event("log", {"message": line})
        self.recency = effective_recency(config, self.corpus, self.plan.num_blocks)
        if self.recency == 0 < config.recency:
            self.on_event(
                "log", {"message": "train.recency is off, as the log has no times: a user's tokens all count the same"}
            )
        self.blocks = ItemBlocks(config, counts, self.plan.num_blocks)
        self.course = Course(config, self.corpus, self.plan, self.blocks, self.recency, share)
        self.num_positions = self.course.num_positions
        self._keep_best()
        if self.generation and is_divided_otherwise(self.generation.manifest, self.plan):
            self._redivide(self.generation)
        users, items, shared_from = {}, {}, None
        if self.generation:
            if self.record.position:
                done = f"{self.record.position:,} of {self.num_positions:,} {self.unit}"
                self.on_event("log", {"message": f"going on where a training was stopped: {done} are done"})
            users, items = self.generation.manifest["users"], self.generation.item_entries()
            shared_from = self.generation.manifest["resident_block"]
        has_others = not self.workers.is_alone
        writer = Writer(job.store_dir, next_generation(job.store_dir), users, items, has_others)
        if not self.workers.is_alone:
            self.together = meet_workers(self.workers, self.plan.sharing, self.blocks, self.record)
        exchange = self.together.exchange if self.together else None
        self.engine = make_engine(self.kernel, self.corpus, self.blocks, self.record, exchange)
        self.slots = Slots(
            self.corpus, writer, config, self.record, self.plan.place_bytes, self.blocks, shared_from, self.workers,
            self.plan.sharing.is_sharded,
        )  # fmt: skip
        if self.warm_start and not self.generation:
            self._begin_from(self.warm_start)

    @property
    def unit(self) -> str:
        """What a position is."""
        return "micro-partitions" if self.workers.is_alone else "places"

    def _keep_best(self) -> None:
        """Pin the best epoch's generation where a crash came between its commit and its pin."""
        best, generation = self.record.best, self.generation
        if self.workers.is_first and best and generation and best["generation"] == generation.generation:
            pin_generation(self.job.store_dir, "best")

    def _redivide(self, generation: Generation) -> None:
        """Divide what was committed for this plan, and go on from there."""
        first_does(self.workers, lambda: redivide(generation, self.course))
        if generation.position:
            message = tell_change(generation.manifest, self.workers.num, self.config.epochs)
            self.on_event("log", {"message": message})
        self.generation = open_generation(self.job.store_dir)
        self.record = read_record(self.generation.manifest, self.workers.rank)

    def _begin_from(self, warm_start: WarmStart) -> None:
        """Let the items begin from the vectors given; there is one block then."""
        num_found = apply_warm_start(self.slots.admit_block(0), self.corpus.folder, warm_start)
        message = f"{num_found:,} of {self.corpus.num_items:,} items begin from the vectors given"
        self.on_event("log", {"message": message})

    def run(self, stop: threading.Event) -> None:
        """Train every micro-partition that is left, in order; commit when it is time, when stopped, and at the end."""
        config, in_epoch = self.config, self.num_positions // self.config.epochs
        position, last_commit = self.record.position, time.monotonic()
        self.clock = time.perf_counter()
        while not self.is_done:
            step = self.course.step(position)
            assert step is not None
            for visit in self._visits(position, step):
                self._conclude(self.engine.train(visit, lambda: self._visit_after(visit)))  # noqa: B023 (called within)
            num_exchanges = self.course.num_exchanges(position)
            position += 1
            is_judged = bool(config.patience) and position % in_epoch == 0
            is_stopping = stop.is_set()
            is_time = time.monotonic() - last_commit >= config.commit_seconds
            if self.together is not None:
                if num_exchanges == 0:
                    continue
                self._conclude(self.engine.settle())
                wishes = is_stopping, is_time
                is_stopping, is_time = self._hear(self.together.meet(position, num_exchanges, wishes))
            if is_judged or is_stopping or is_time or position == self.num_positions:
                self._conclude(self.engine.settle())
                if self.together is not None:
                    self._hear(self.together.drain())
                self._judge_epoch(step.epoch) if is_judged else self._commit()
                last_commit, self.clock = time.monotonic(), time.perf_counter()
            self.slots.check()
            if is_stopping and not self.is_done:
                self.slots.wait_for_commit()
                raise StoppedError(
                    f"stopped at {self.record.position / self.num_positions:.0%} after committing generation "
                    f"{self.slots.writer.generation - 1}: the same command goes on from there"
                )
        self.slots.wait_for_commit()
        if self.together is not None:  # with what the last commit wrote
            self.record.loads = self.together.gather_loads()

    def _conclude(self, all_ended: Iterator[Ended]) -> None:
        """Measure the visits that have ended; they count, and are reported, from now on, or once all workers have met."""
        for ended in all_ended:
            visit, record = ended.visit, self.record
            if self.together is None and visit.step.is_chunk_start and visit.step.place == 0:
                record.curve.begin_epoch()
            conclude(ended, self.items.outputs.vectors, self.together.curve if self.together else record.curve)
            self._count_seconds()
            if visit.num_users:
                self.alpha = float(visit.work.alphas[-1])
            record.peak_bytes = max(record.peak_bytes, private_bytes())
            num_tokens = visit.num_tokens / self.plan.num_blocks
            if self.together is not None:
                self.together.tokens += num_tokens
            else:
                record.position, record.tokens_done = visit.position + 1, record.tokens_done + num_tokens
                self._report()
            self.clock = time.perf_counter()

    def _hear(self, all_heard: "Iterator[Heard]") -> tuple[bool, bool]:
        """Count what all workers did; returns whether one wishes to stop, and whether one wishes to commit."""
        is_stopping = is_time = False
        for heard in all_heard:
            record = self.record
            if record.position % (self.num_positions // self.config.epochs) == 0:
                record.curve.begin_epoch()
            record.curve.add_sums(heard.sums)
            record.position, record.loads = heard.position, heard.loads
            record.tokens_done += heard.tokens
            is_stopping, is_time = is_stopping or heard.is_stopping, is_time or heard.is_time
            self._count_seconds()
            self._report()
        self.clock = time.perf_counter()
        return is_stopping, is_time

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.record.train_seconds += now - self.clock
        self.clock = now

    def close(self) -> None:
        """End what is under way, and the threads. What was not committed is not kept."""
        try:
            self.engine.close()
        finally:
            self.slots.close()

    def _committed(self) -> Generation | None:
        if not has_generation(self.job.store_dir):
            return None
        if is_outdated(self.job.store_dir):
            self.on_event("log", {"message": "the store is of an earlier version: training begins anew"})
            return None
        generation = open_generation(self.job.store_dir)
        return generation if generation.manifest["identity"] == self.identity else None

    def _visits(self, position: int, step: Step) -> Iterator[Visit]:
        """What is done at a position, a visit at a time, with all that it needs in memory."""
        self._swap(position, step)
        for index, partition in enumerate(self.course.partitions_at(step)):
            resident = self.slots.admit(partition)  # also one made ahead, which a commit may be writing
            ahead, self.made_ahead = self.made_ahead, None
            if ahead is not None and (ahead.position, ahead.index) == (position, index):
                yield ahead
            else:
                assert self.targets is not None
                yield self.course.visit(position, index, step, resident, self.targets)

    def _visit_after(self, visit: Visit) -> Visit | None:
        """The visit after this one; None where it needs what this one changes, or another item block."""
        position, index, step = visit.position, visit.index + 1, self.course.step(visit.position)
        if visit.is_last:
            position, index, step = visit.position + 1, 0, self.course.step(visit.position + 1)
        if step is None or step.block != visit.step.block:
            return None
        here = self.course.partitions_at(step)
        if not here or here[index] == visit.partition:
            return None
        self.made_ahead = self.course.visit(position, index, step, self.slots.admit(here[index]), visit.targets)
        return self.made_ahead

    def _swap(self, position: int, step: Step) -> None:
        """At a chunk's first micro-partition: evict the chunk before, and begin to read this one and the next.

        At a block's first: evict the block before, and begin to read the one after.
        """
        slots, partitions = self.slots, self.course.partitions(step)
        if self.targets is None and slots.ring is None:
            slots.prefetch_block(step.block)  # before the users: with it the first of them can be trained
        if self.plan.is_resident:
            slots.prefetch(partitions)
        elif step.is_chunk_start or not slots.residents:
            wanted = partitions if step.turn else self.course.partitions_from(step)
            slots.evict([p for p in slots.residents if p not in wanted])
            slots.prefetch(wanted)
            following = self.course.step(position + self.course.steps_left(step))
            if following:
                slots.prefetch(self.course.partitions(following))
        if self.targets is None or step.block != slots.block:
            self._admit_block(step.block)
            following = self.course.step(position + step.chunk.stop - step.place)
            if following and slots.ring is None:
                slots.prefetch_block(following.block)

    def _admit_block(self, block: int) -> None:
        if self.targets is not None:
            self._conclude(self.engine.settle())
            self.engine.bring_items_home()
        self.targets = self.blocks.targets(block)  # while the block is still being read
        self.items = self.slots.admit_block(block)
        if self.together is not None and self.slots.ring is not None:
            self.together.count_passing(self.slots.ring.passed_bytes, self.slots.ring.wait_seconds)
        self.engine.admit_block(self.items, self.targets)

    def _judge_epoch(self, epoch: int) -> None:
        """Commit after an epoch, keep the generation when it is the best; at the end go back to the best."""
        self.slots.wait_for_commit()
        is_last = self.record.position == self.num_positions
        verdict = judge_epoch(self.record, epoch, self.config.patience, is_last, self.slots.writer.generation)
        if verdict.is_over:
            self.record.stopped_after_epoch = epoch + 1
            self._return_to_best()
        else:
            self._commit()
        if verdict.is_best and not is_last:
            self.slots.wait_for_commit()
            first_does(self.workers, lambda: pin_generation(self.job.store_dir, "best"))
        if self.is_done:
            self.slots.wait_for_commit()
            first_does(self.workers, lambda: unpin_best(self.job.store_dir))

    def _return_to_best(self) -> None:
        best = self.record.best
        assert best is not None
        message = f"epoch {best['epoch']} had the lowest held-out loss, {best['heldout_loss']:.4f}: it is kept"
        self.on_event("log", {"message": message})
        generation, values = open_pinned(self.job.store_dir, "best"), self._manifest()
        first_does(self.workers, lambda: self.slots.writer.commit_again(generation, values))

    def _report(self) -> None:
        self.on_event(
            "progress",
            {"step": "train", "done": self.record.position, "total": self.num_positions, "unit": self.unit},
        )
        is_point = self.record.position % -(-self.num_positions // MAX_POINTS) == 0 or self.is_done
        if is_point and self.record.curve.point_sums[1]:
            self.on_event("train", self.record.add_point(self.num_positions // self.config.epochs, self.alpha))

    def _commit(self) -> None:
        self.record.num_commits += 1
        started = time.perf_counter()
        self.engine.bring_items_home()
        self.record.commit_stall_seconds += time.perf_counter() - started
        self.slots.commit(self._manifest())
        self.record.peak_bytes = max(self.record.peak_bytes, private_bytes())

    def _manifest(self) -> dict[str, Any]:
        """What the next manifest says beside its files."""
        return {
            "identity": self.identity,
            "window_id": self.corpus.manifest["window_id"],
            "config": dataclasses.asdict(self.job.config),
            "recency": self.recency,
            "partitions": self.corpus.num_partitions,
            "num_items": self.corpus.num_items,
            "num_blocks": self.plan.num_blocks,
            "num_positions": self.num_positions,
            "resident_block": self.slots.block,
            "vector_size": self.config.vector_size,
            "stage": "trained" if self.is_done else "training",
            "kernel": self.kernel.name,
            "kernel_reason": self.kernel.reason,
            "plan": self.plan.to_json(),
        } | self.record.to_json()


def meet_workers(workers: Workers, sharing: Sharing, blocks: ItemBlocks, record: Record) -> "Together":
    """This worker's part of a training of several; of items those rows are exchanged that all workers have."""
    from trainer.training.worker_part import Together

    num_rows = blocks.num_shared_rows if sharing.is_sharded else blocks.num_outputs(0)
    return Together(workers, sharing, num_rows, record)
