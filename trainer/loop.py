"""The training, readable top to bottom: where it stands, the plan, and one micro-partition after the other.

Its position is one integer, the micro-partitions done over all epochs. State is the rows and that integer: a run that
was killed and resumed does the same arithmetic as one that was not. With `patience`, the generation with the lowest
held-out loss is pinned as "best" at its epoch's end; the training ends with it.
"""

import dataclasses
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import TrainConfig
from trainer.corpus import Corpus, Histories, open_corpus
from trainer.curve import MAX_POINTS, Curve, Targets
from trainer.draws import epoch_key
from trainer.errors import ConfigError, SurfError, TrainingError
from trainer.events import OnEvent, ignore_event
from trainer.files import digest_json, read_json
from trainer.kernels import Kernel, pick_kernel
from trainer.kernels.accumulation import train_in_steps
from trainer.kernels.signature import Pass
from trainer.objectives import make_sampling
from trainer.plan import Plan, plan_training, training_sizes
from trainer.rows import Items, Rows, at_rest, begin_items, begin_users
from trainer.schedule import chunk_at, learning_rates, partition_offsets, partition_order, user_order
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
from trainer.trees import Tree, make_tree, tree_bytes
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
        if training.position and not training.is_done and not resume:
            raise ConfigError(
                f"the store {job.store_dir} holds this training at {training.position / training.num_positions:.0%}: "
                "give --resume to go on with it, or another --store"
            )
        if not training.is_done:
            training.prepare()
            try:
                training.run(stop or threading.Event())
            finally:
                training.slots.close()
        return training.result()


class Training:
    """One training: what is in memory, and how far it is."""

    def __init__(self, job: Job, corpus: Corpus, on_event: OnEvent) -> None:
        self.job, self.config, self.corpus, self.on_event = job, job.config, corpus, on_event
        path = job.config.items_from
        self.warm_start = job.warm_start or (read_warm_start(Path(path)) if path else None)
        self.identity = identity(corpus, job.config, self.warm_start)
        self.num_positions = self.config.epochs * corpus.num_partitions
        self.generation = self._committed()
        manifest = self.generation.manifest if self.generation else {}
        self.position: int = manifest.get("position", 0)
        self.curve = Curve(**manifest.get("curve", {}))
        self.seconds: float = manifest.get("train_seconds", 0.0)
        self.tokens_done: int = manifest.get("tokens_done", 0)
        self.num_commits: int = manifest.get("num_commits", 0)
        self.bytes_written: int = manifest.get("bytes_written", 0)
        self.best: dict[str, Any] | None = manifest.get("best")
        self.is_early = manifest.get("stopped_after_epoch") is not None

    @property
    def is_done(self) -> bool:
        return self.position == self.num_positions or self.is_early

    def prepare(self) -> None:
        """Pick the kernel, make the plan, load or begin the item table. Says what was chosen and why."""
        config, job = self.config, self.job
        self.kernel: Kernel = pick_kernel(job.kernel, config)
        counts = self.corpus.count_training_tokens()
        self.targets = Targets(config, make_sampling(counts, config), make_tree(config, counts))
        self.recency = effective_recency(config, self.corpus)
        self.plan = make_plan(job, self.corpus, self.targets.tree)
        for line in (f"kernel={self.kernel.name}: {self.kernel.reason}", *self.plan.reasons):
            self.on_event("log", {"message": line})
        if self.recency != config.recency:
            self.on_event("log", {"message": "the log has no times: a user's tokens all count the same"})
        if self.generation:
            done = f"{self.position:,} of {self.num_positions:,} micro-partitions"
            self.on_event("log", {"message": f"resuming at {done}"})
            if self.best and self.best["generation"] == self.generation.generation:
                pin_generation(job.store_dir, "best")  # the crash may have come between the commit and the pin
        self.items: Items = self._first_items() if self.generation is None else self.generation.read_item_table()
        users = self.generation.manifest["users"] if self.generation else {}
        self.writer = Writer(job.store_dir, next_generation(job.store_dir), users)
        self.slots = Slots(self.corpus, self.writer, config)
        warm_up(self.kernel, config)

    def run(self, stop: threading.Event) -> None:
        """Train every micro-partition that is left, in order; commit when it is time, when stopped, and at the end."""
        config, num_partitions = self.config, self.corpus.num_partitions
        last_commit = time.monotonic()
        while not self.is_done:
            epoch, index = divmod(self.position, num_partitions)
            order = partition_order(config.seed, epoch, num_partitions)
            if index == 0:
                self.curve.begin_epoch()
            self._swap(epoch, index, order)
            started = time.perf_counter()
            self._train_partition(epoch, index, order)
            self.seconds += time.perf_counter() - started
            self.position += 1
            self._report(epoch, index)
            if index == num_partitions - 1 and config.patience:
                self._judge_epoch(epoch)
                last_commit = time.monotonic()
            elif self.is_done or stop.is_set() or time.monotonic() - last_commit >= config.commit_seconds:
                self._commit()
                last_commit = time.monotonic()
            if stop.is_set() and not self.is_done:
                raise StoppedError(
                    f"stopped at {self.position / self.num_positions:.0%} after committing generation "
                    f"{self.writer.generation - 1}: the same command goes on from there"
                )

    def result(self) -> dict[str, Any]:
        """The story's "train" (without seconds)."""
        manifest = open_generation(self.job.store_dir).manifest
        return {
            "generation": manifest["generation"],
            "kernel": manifest["kernel"],
            "kernel_reason": manifest["kernel_reason"],
            "plan": manifest["plan"],
            "tokens": self.tokens_done,
            "tokens_per_second": self.tokens_done / self.seconds if self.seconds else None,
            **self.curve.epoch_losses(),
            "best": manifest["best"],
            "stopped_after_epoch": manifest["stopped_after_epoch"],
            "curve": self.curve.points,
            "bytes_written": self.bytes_written,
            "num_commits": self.num_commits,
            "stall": manifest["stall"],
        }

    def _committed(self) -> Generation | None:
        if not has_generation(self.job.store_dir):
            return None
        if is_outdated(self.job.store_dir):
            self.on_event("log", {"message": "the store is of an earlier version: training begins anew"})
            return None
        generation = open_generation(self.job.store_dir)
        return generation if generation.manifest["identity"] == self.identity else None

    def _swap(self, epoch: int, index: int, order: np.ndarray) -> None:
        """At a chunk's first micro-partition: evict the chunk before, and begin to read this one and the next."""
        chunk = chunk_at(index, self.plan.chunk_partitions, len(order))
        if self.plan.is_resident:
            self.slots.prefetch([int(order[i]) for i in chunk])
            return
        if index == chunk.start or not self.slots.residents:
            wanted = [int(order[i]) for i in chunk if i >= index]
            self.slots.evict([p for p in self.slots.residents if p not in wanted])
            self.slots.prefetch(wanted)
            if chunk.stop < len(order):
                following = chunk_at(chunk.stop, self.plan.chunk_partitions, len(order))
                self.slots.prefetch([int(order[i]) for i in following])
            elif epoch + 1 < self.config.epochs:
                following_order = partition_order(self.config.seed, epoch + 1, len(order))
                following = chunk_at(0, self.plan.chunk_partitions, len(order))
                self.slots.prefetch([int(following_order[i]) for i in following])

    def _train_partition(self, epoch: int, index: int, order: np.ndarray) -> None:
        partition = int(order[index])
        resident = self.slots.admit(partition)
        histories = resident.histories
        if histories.num_users == 0:
            return
        users = user_order(self.config.seed, epoch, histories.hashes)
        lengths = np.diff(histories.offsets)[users]
        epoch_tokens = int(self.corpus.tokens.sum())
        first_token = epoch * epoch_tokens + int(partition_offsets(order, self.corpus.tokens)[index])
        alphas = learning_rates(
            self.config.alpha, self.config.min_alpha, first_token, lengths, self.config.epochs * epoch_tokens
        )
        self.alpha = float(alphas[-1])
        work = Pass(
            config=self.config, tokens=histories.tokens, starts=histories.starts, ends=histories.ends,
            hashes=histories.hashes, order=users, alphas=alphas, sampling=self.targets.sampling, tree=self.targets.tree,
            recency=self.recency, epoch_key=epoch_key(self.config.seed, epoch),
        )  # fmt: skip
        rows = Rows(resident.rows.widened(), resident.rows.squares)
        train_in_steps(self.kernel.train_users, rows, self.items, work)
        self.tokens_done += int((histories.ends - histories.starts).sum())
        self._measure(rows.vectors, histories, epoch, partition)
        resident.rows = at_rest(self.config, epoch, histories.hashes, rows)
        resident.is_dirty = True

    def _measure(self, vectors: np.ndarray, histories: Histories, epoch: int, partition: int) -> None:
        """Add the micro-partition to the curve. Raises TrainingError when its vectors or losses are not finite."""
        is_finite = bool(np.isfinite(vectors).all())
        if is_finite:
            self.curve.measure(self.targets, vectors, self.items.outputs.vectors, histories)
        if not (is_finite and np.isfinite(self.curve.point_sums).all()):
            raise TrainingError(
                f"vectors are no longer finite in epoch {epoch + 1}, micro-partition {partition} (learning rate "
                f"{self.alpha:.4g}); nothing of it was written: lower train.alpha (now {self.config.alpha:g})"
            )

    def _judge_epoch(self, epoch: int) -> None:
        """Commit after an epoch, keep the generation when it is the best; at the end go back to the best."""
        heldout_loss = self.curve.epoch_losses()["heldout_loss"]
        is_better = heldout_loss is not None and (self.best is None or heldout_loss < self.best["heldout_loss"])
        if is_better:
            self.best = {"epoch": epoch + 1, "heldout_loss": heldout_loss, "generation": self.writer.generation}
        is_last = self.position == self.num_positions
        is_hopeless = self.best is not None and epoch + 1 - self.best["epoch"] >= self.config.patience
        if is_better or not (is_last or is_hopeless):
            self._commit()
            if is_better and not is_last:
                pin_generation(self.job.store_dir, "best")
        elif self.best is None:
            self._commit()
        else:
            self.is_early = not is_last
            self._return_to_best(epoch)
        if self.is_done:
            unpin_best(self.job.store_dir)

    def _return_to_best(self, epoch: int) -> None:
        assert self.best is not None
        best = open_pinned(self.job.store_dir, "best")
        message = (
            f"epoch {self.best['epoch']} had the lowest held-out loss, {self.best['heldout_loss']:.4f}: it is kept"
        )
        self.on_event("log", {"message": message})
        self.generation = self.writer.commit_again(best, self._manifest(epoch + 1))

    def _report(self, epoch: int, index: int) -> None:
        num_partitions = self.corpus.num_partitions
        self.on_event(
            "progress",
            {"step": "train", "done": self.position, "total": self.num_positions, "unit": "micro-partitions"},
        )
        is_point = self.position % -(-self.num_positions // MAX_POINTS) == 0 or self.is_done
        if is_point and self.curve.point_sums[1]:
            point = self.curve.add_point(
                epoch=round(epoch + (index + 1) / num_partitions, 4),
                seconds=round(self.seconds, 3),
                tokens=self.tokens_done,
                tokens_per_second=self.tokens_done / max(self.seconds, 1e-9),
                alpha=self.alpha,
            )
            self.on_event("train", point)

    def _first_items(self) -> Items:
        tree = self.targets.tree
        num_items = self.corpus.num_items
        items = begin_items(self.config, num_items, tree.num_rows if tree else num_items)
        if self.warm_start:
            num_found = apply_warm_start(items, self.corpus.folder, self.warm_start)
            message = f"{num_found:,} of {num_items:,} items begin from the vectors given"
            self.on_event("log", {"message": message})
        return items

    def _commit(self) -> None:
        self.slots.write_all()
        self.num_commits += 1
        self.bytes_written += self.writer.bytes_written + self.items.num_bytes
        self.generation = self.writer.commit(self.items, self._manifest(None))
        self.writer.bytes_written = 0

    def _manifest(self, stopped_after_epoch: int | None) -> dict[str, Any]:
        """What the next manifest says beside its files."""
        return {
            "identity": self.identity,
            "window_id": self.corpus.manifest["window_id"],
            "config": dataclasses.asdict(self.config),
            "recency": self.recency,
            "partitions": self.corpus.num_partitions,
            "num_items": self.corpus.num_items,
            "vector_size": self.config.vector_size,
            "stage": "trained" if self.is_done else "training",
            "position": self.position,
            "best": self.best,
            "stopped_after_epoch": stopped_after_epoch,
            "curve": self.curve.to_json(),
            "train_seconds": self.seconds,
            "tokens_done": self.tokens_done,
            "num_commits": self.num_commits,
            "bytes_written": self.bytes_written,
            "stall": self.slots.stall_seconds / max(self.seconds, 1e-9),
            "kernel": self.kernel.name,
            "kernel_reason": self.kernel.reason,
            "plan": self.plan.to_json(),
        }


def effective_recency(config: TrainConfig, corpus: Corpus) -> float:
    """`train.recency`, or 0 where the order of a user's tokens is not one of time."""
    return 0.0 if corpus.manifest["undated"] else config.recency


def make_plan(job: Job, corpus: Corpus, tree: Tree | None) -> Plan:
    """The plan for a job on this machine as it is now."""
    job.store_dir.mkdir(parents=True, exist_ok=True)
    stat = os.statvfs(job.store_dir)
    sizes = training_sizes(
        job.config, corpus.num_items, tree.num_rows if tree else corpus.num_items, tree_bytes(tree) if tree else 0
    )
    disk_free_bytes = stat.f_bavail * stat.f_frsize
    return plan_training(
        corpus.users.tolist(), corpus.num_items, sizes, job.host_memory_bytes, private_bytes(), disk_free_bytes
    )


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


def private_bytes() -> int:
    """Anonymous and shared memory that this process holds now: what a budget is measured by."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines() if os.path.exists("/proc") else []
    fields = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(value.split()[0]) * 1024 for value in fields.values())


def next_generation(store_dir: Path) -> int:
    """The number of the generation that the next commit makes: higher than any before, pinned ones included."""
    paths = [store_dir / "MANIFEST.json", *(store_dir / "pinned").glob("*.json")]
    return 1 + max((read_json(path)["generation"] for path in paths if path.exists()), default=0)
