"""The training, readable top to bottom: where it stands, the plan, and one micro-partition after the other.

Its position is one integer, the micro-partitions done over all epochs. State is the rows and that integer: a run that
was killed and resumed does the same arithmetic as one that was not. With `patience`, the generation with the lowest
held-out loss is pinned as "best" at its epoch's end; the training ends with it.
"""

import dataclasses
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.blocks import ItemBlocks
from trainer.config import TrainConfig
from trainer.corpus import Corpus, Histories, open_corpus
from trainer.curve import MAX_POINTS
from trainer.draws import epoch_key
from trainer.errors import ConfigError, SurfError, TrainingError
from trainer.events import OnEvent, ignore_event
from trainer.files import digest_json, read_json
from trainer.kernels import Kernel, pick_kernel
from trainer.kernels.accumulation import train_in_steps
from trainer.kernels.signature import Pass
from trainer.memory import limit_device_memory, private_bytes
from trainer.plan import Division, Work, training_sizes
from trainer.preparation import make_plan, warm_up
from trainer.record import read_record
from trainer.rows import Rows, at_rest
from trainer.schedule import (
    Step,
    learning_rates,
    partition_offsets,
    partition_order,
    step_at,
    tokens_before,
    user_order,
)
from trainer.slots import Slots
from trainer.store import (
    Generation,
    Writer,
    has_generation,
    is_outdated,
    lock_store,
    open_generation,
    open_pinned,
    pin_generation,
    unpin_best,
)
from trainer.trees import make_tree
from trainer.warm_start import WarmStart, apply_warm_start, read_warm_start

RESULT_NEUTRAL = ("commit_seconds", "threads")
"""Settings that a resumed run may change: they do not say what is learned."""


@dataclass(frozen=True)
class Job:
    """What to train, where, and within which budget; `warm_start`: vectors in memory that the items begin from."""

    corpus_dir: Path
    store_dir: Path
    config: TrainConfig
    host_memory_bytes: int
    kernel: str = "cpu"
    device_memory_bytes: int | None = None
    warm_start: WarmStart | None = None


class StoppedError(SurfError):
    """Training was asked to stop, and did so after a commit."""

    code = "stopped"


def identity(corpus: Corpus, config: TrainConfig, warm_start: WarmStart | None = None) -> str:
    """What a training is: the digest of its corpus, its start, and the settings that say what is learned."""
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in RESULT_NEUTRAL}
    start = {"start": warm_start.digest} if warm_start else {}
    return digest_json({"corpus": corpus.manifest, "config": settings} | start)


def train(
    job: Job, on_event: OnEvent = ignore_event, *, resume: bool = True, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Train all epochs, or what is left of them, and commit; answers what the run's story records of it.

    A training of the same corpus and configuration that is in the store is resumed, or answered when it has ended;
    any other generation there is replaced by the first commit. `stop` ends it at the next micro-partition's end.
    Raises ConfigError for an unfinished training when `resume` is False, ResourceError when the plan does not fit or
    the store is locked or full, DamageError for altered files, TrainingError when the loss is not finite,
    StoppedError when stopped.
    """
    with lock_store(job.store_dir):
        corpus = open_corpus(job.corpus_dir)
        training = Training(job, corpus, on_event)
        if training.record.position and not training.is_done and not resume:
            raise ConfigError(
                f"the store {job.store_dir} holds this training at {training.record.position / training.num_positions:.0%}: "
                "give --resume to go on with it, or another --store"
            )
        if not training.is_done:
            training.prepare()
            try:
                training.run(stop or threading.Event())
            finally:
                training.slots.close()
        return training.record.story(open_generation(job.store_dir).manifest)


class Training:
    """One training: what is in memory, and how far it is."""

    def __init__(self, job: Job, corpus: Corpus, on_event: OnEvent) -> None:
        self.job, self.config, self.corpus, self.on_event = job, job.config, corpus, on_event
        path = job.config.items_from
        self.warm_start = job.warm_start or (read_warm_start(Path(path)) if path else None)
        self.identity = identity(corpus, job.config, self.warm_start)
        self.generation = self._committed()
        manifest = self.generation.manifest if self.generation else {}
        self.num_positions = self.config.epochs * corpus.num_partitions * manifest.get("num_blocks", 1)
        self.record = read_record(manifest)

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
        warm_up(self.kernel, config)
        began = None
        if self.generation:
            manifest = self.generation.manifest
            began = Division(manifest["plan"]["chunk_partitions"], manifest["num_blocks"])
        sizes = training_sizes(config, self.corpus.num_items, make_tree(config, counts))
        work = Work(self.corpus.users.tolist(), int(self.corpus.tokens.sum()), config.epochs, config.commit_seconds)
        self.plan = make_plan(
            self.kernel, config, work, sizes, (job.host_memory_bytes, job.device_memory_bytes), job.store_dir, began
        )
        for line in (f"kernel={self.kernel.name}: {self.kernel.reason}", *self.plan.reasons):
            self.on_event("log", {"message": line})
        self.recency = effective_recency(config, self.corpus, self.plan.num_blocks)
        if self.recency == 0 < config.recency:
            self.on_event("log", {"message": "the log has no times: a user's tokens all count the same"})
        self.num_positions = config.epochs * self.corpus.num_partitions * self.plan.num_blocks
        self.blocks = ItemBlocks(config, counts, self.plan.num_blocks)
        users, items, shared_from = {}, {}, None
        if self.generation:
            done = f"{self.record.position:,} of {self.num_positions:,} micro-partitions"
            self.on_event("log", {"message": f"resuming at {done}"})
            if self.record.best and self.record.best["generation"] == self.generation.generation:
                pin_generation(job.store_dir, "best")  # the crash may have come between the commit and the pin
            users, items = self.generation.manifest["users"], self.generation.item_entries()
            shared_from = self.generation.manifest["resident_block"]
        writer = Writer(job.store_dir, next_generation(job.store_dir), users, items)
        self.slots = Slots(self.corpus, writer, config, self.record, self.plan.place_bytes, self.blocks, shared_from)
        if self.warm_start and not self.generation:
            self._begin_from(self.warm_start)

    def _begin_from(self, warm_start: WarmStart) -> None:
        """Let the items begin from the vectors given; there is one block then."""
        self._admit_block(0)
        num_found = apply_warm_start(self.items, self.corpus.folder, warm_start)
        message = f"{num_found:,} of {self.corpus.num_items:,} items begin from the vectors given"
        self.on_event("log", {"message": message})

    def run(self, stop: threading.Event) -> None:
        """Train every micro-partition that is left, in order; commit when it is time, when stopped, and at the end."""
        config, plan, num_partitions = self.config, self.plan, self.corpus.num_partitions
        last_commit = time.monotonic()
        while not self.is_done:
            started = time.perf_counter()
            step = step_at(self.record.position, num_partitions, plan.chunk_partitions, plan.num_blocks)
            order = partition_order(config.seed, step.epoch, num_partitions)
            if step.is_chunk_start and step.place == 0:
                self.record.curve.begin_epoch()
            self._swap(step, order)
            self._train_partition(step, order)
            self.record.train_seconds += time.perf_counter() - started
            self.record.position += 1
            self._report(step)
            if self.record.position % (num_partitions * plan.num_blocks) == 0 and config.patience:
                self._judge_epoch(step.epoch)
                last_commit = time.monotonic()
            elif self.is_done or stop.is_set() or time.monotonic() - last_commit >= config.commit_seconds:
                self._commit()
                last_commit = time.monotonic()
            self.slots.check()
            if stop.is_set() and not self.is_done:
                self.slots.wait_for_commit()
                raise StoppedError(
                    f"stopped at {self.record.position / self.num_positions:.0%} after committing generation "
                    f"{self.slots.writer.generation - 1}: the same command goes on from there"
                )
        self.slots.wait_for_commit()

    def _committed(self) -> Generation | None:
        if not has_generation(self.job.store_dir):
            return None
        if is_outdated(self.job.store_dir):
            self.on_event("log", {"message": "the store is of an earlier version: training begins anew"})
            return None
        generation = open_generation(self.job.store_dir)
        return generation if generation.manifest["identity"] == self.identity else None

    def _step_after(self, num_steps: int) -> Step | None:
        """The step so many positions on; None where training has ended by then."""
        plan = self.plan
        if self.record.position + num_steps >= self.num_positions:
            return None
        return step_at(self.record.position + num_steps, plan.num_partitions, plan.chunk_partitions, plan.num_blocks)

    def _swap(self, step: Step, order: np.ndarray) -> None:
        """At a chunk's first micro-partition: evict the chunk before, and begin to read this one and the next.

        At a block's first: evict the block before, and begin to read the one after.
        """
        plan, num_partitions = self.plan, len(order)
        if plan.is_resident:
            self.slots.prefetch([int(order[place]) for place in step.chunk])
        elif step.is_chunk_start or not self.slots.residents:
            wanted = [int(order[place]) for place in step.chunk if place >= step.place or step.turn]
            self.slots.evict([p for p in self.slots.residents if p not in wanted])
            self.slots.prefetch(wanted)
            following = self._step_after(
                step.chunk.stop - step.place + (plan.num_blocks - 1 - step.turn) * len(step.chunk)
            )
            if following:
                following_order = partition_order(self.config.seed, following.epoch, num_partitions)
                self.slots.prefetch([int(following_order[place]) for place in following.chunk])
        if step.block != self.slots.block:
            self._admit_block(step.block)
            following = self._step_after(step.chunk.stop - step.place)
            if following:
                self.slots.prefetch_block(following.block)

    def _admit_block(self, block: int) -> None:
        self.items = self.slots.admit_block(block)
        self.targets = self.blocks.targets(block)

    def _train_partition(self, step: Step, order: np.ndarray) -> None:
        config, num_blocks = self.config, self.plan.num_blocks
        partition = int(order[step.place])
        resident = self.slots.admit(partition)
        histories = resident.histories
        if histories.num_users == 0:
            return
        users = user_order(config.seed, step.epoch, histories.hashes)
        lengths = np.diff(histories.offsets)[users] / num_blocks
        epoch_tokens = int(self.corpus.tokens.sum())
        before = tokens_before(step, partition_offsets(order, self.corpus.tokens), num_blocks)
        alphas = learning_rates(
            config.alpha, config.min_alpha, step.epoch * epoch_tokens + before, lengths, config.epochs * epoch_tokens
        )
        self.alpha = float(alphas[-1])
        self.record.tokens_done += int((histories.ends - histories.starts).sum()) / num_blocks
        histories = self.blocks.histories(histories, step.block)
        work = Pass(
            config=config, tokens=histories.tokens, starts=histories.starts, ends=histories.ends,
            hashes=histories.hashes, order=users, alphas=alphas, sampling=self.targets.sampling, tree=self.targets.tree,
            recency=self.recency, epoch_key=epoch_key(config.seed, step.epoch),
        )  # fmt: skip
        rows = Rows(resident.rows.widened(), resident.rows.squares)
        train_in_steps(self.kernel.train_users, rows, self.items, work)
        self._measure(rows.vectors, histories, step.epoch, partition)
        if config.dtype != "float32":
            resident.rows.vectors[:] = at_rest(config, step.epoch, histories.hashes, rows).vectors
        resident.is_dirty = True
        self.record.peak_bytes = max(self.record.peak_bytes, private_bytes())

    def _measure(self, vectors: np.ndarray, histories: Histories, epoch: int, partition: int) -> None:
        """Add the micro-partition to the curve. Raises TrainingError when its vectors or losses are not finite."""
        is_finite = bool(np.isfinite(vectors).all())
        if is_finite:
            self.record.curve.measure(self.targets, vectors, self.items.outputs.vectors, histories)
        if not (is_finite and np.isfinite(self.record.curve.point_sums).all()):
            raise TrainingError(
                f"vectors are no longer finite in epoch {epoch + 1}, micro-partition {partition} (learning rate "
                f"{self.alpha:.4g}); nothing of it was written: lower train.alpha (now {self.config.alpha:g})"
            )

    def _judge_epoch(self, epoch: int) -> None:
        """Commit after an epoch, keep the generation when it is the best; at the end go back to the best."""
        self.slots.wait_for_commit()
        heldout_loss = self.record.curve.epoch_losses()["heldout_loss"]
        is_better = heldout_loss is not None and (
            self.record.best is None or heldout_loss < self.record.best["heldout_loss"]
        )
        if is_better:
            next_generation = self.slots.writer.generation
            self.record.best = {"epoch": epoch + 1, "heldout_loss": heldout_loss, "generation": next_generation}
        is_last = self.record.position == self.num_positions
        is_hopeless = self.record.best is not None and epoch + 1 - self.record.best["epoch"] >= self.config.patience
        if is_better or not (is_last or is_hopeless):
            self._commit()
            if is_better and not is_last:
                self.slots.wait_for_commit()
                pin_generation(self.job.store_dir, "best")
        elif self.record.best is None:
            self._commit()
        else:
            self.record.stopped_after_epoch = epoch + 1
            self._return_to_best()
        if self.is_done:
            self.slots.wait_for_commit()
            unpin_best(self.job.store_dir)

    def _return_to_best(self) -> None:
        best = self.record.best
        assert best is not None
        message = f"epoch {best['epoch']} had the lowest held-out loss, {best['heldout_loss']:.4f}: it is kept"
        self.on_event("log", {"message": message})
        self.slots.writer.commit_again(open_pinned(self.job.store_dir, "best"), self._manifest())

    def _report(self, step: Step) -> None:
        self.on_event(
            "progress",
            {"step": "train", "done": self.record.position, "total": self.num_positions, "unit": "micro-partitions"},
        )
        is_point = self.record.position % -(-self.num_positions // MAX_POINTS) == 0 or self.is_done
        if is_point and self.record.curve.point_sums[1]:
            in_epoch = self.num_positions // self.config.epochs
            point = self.record.curve.add_point(
                epoch=round(self.record.position / in_epoch, 4),
                seconds=round(self.record.train_seconds, 3),
                tokens=round(self.record.tokens_done),
                tokens_per_second=self.record.tokens_done / max(self.record.train_seconds, 1e-9),
                alpha=self.alpha,
            )
            self.on_event("train", point)

    def _commit(self) -> None:
        self.record.num_commits += 1
        self.slots.commit(self._manifest())
        self.record.peak_bytes = max(self.record.peak_bytes, private_bytes())

    def _manifest(self) -> dict[str, Any]:
        """What the next manifest says beside its files."""
        return {
            "identity": self.identity,
            "window_id": self.corpus.manifest["window_id"],
            "config": dataclasses.asdict(self.config),
            "recency": self.recency,
            "partitions": self.corpus.num_partitions,
            "num_items": self.corpus.num_items,
            "num_blocks": self.plan.num_blocks,
            "resident_block": self.slots.block,
            "vector_size": self.config.vector_size,
            "stage": "trained" if self.is_done else "training",
            "kernel": self.kernel.name,
            "kernel_reason": self.kernel.reason,
            "plan": self.plan.to_json(),
        } | self.record.to_json()


def effective_recency(config: TrainConfig, corpus: Corpus, num_blocks: int = 1) -> float:
    """`train.recency`, or 0 where the order of a user's tokens is not one of time.

    A third of it with several item blocks: a user's tokens then come block by block, no longer the newest last, and what
    that did for the newest their weight has to do (wikispeedia, hit@20: .351 in order, .335 in 13 blocks, .351 so).
    """
    recency = 0.0 if corpus.manifest["undated"] else config.recency
    return recency if num_blocks == 1 else recency / 3


def next_generation(store_dir: Path) -> int:
    """The number of the generation that the next commit makes: higher than any before, pinned ones included."""
    paths = [store_dir / "MANIFEST.json", *(store_dir / "pinned").glob("*.json")]
    return 1 + max((read_json(path)["generation"] for path in paths if path.exists()), default=0)
