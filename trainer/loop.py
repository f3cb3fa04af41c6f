"""The training, readable top to bottom: where it stands, the plan, and one micro-partition after the other.

Its position is one integer, the micro-partitions done over all epochs. State is the vectors and that integer: a run that
was killed and resumed does the same arithmetic as one that was not.
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
from trainer.corpus import Corpus, open_corpus
from trainer.curve import MAX_POINTS, Curve
from trainer.draws import epoch_key
from trainer.errors import ConfigError, SurfError, TrainingError
from trainer.events import OnEvent, ignore_event
from trainer.files import digest_json, read_json
from trainer.kernels import Kernel, pick_kernel
from trainer.kernels.signature import Pass
from trainer.objectives import Sampling, make_sampling
from trainer.plan import Plan, plan_training
from trainer.schedule import chunk_at, learning_rates, partition_offsets, partition_order, user_order
from trainer.slots import Resident, Slots
from trainer.store import Generation, Writer, has_generation, lock_store, open_generation

RESULT_NEUTRAL = ("commit_seconds", "threads")
"""Settings that a resumed run may change: they do not say what is learned."""


@dataclass(frozen=True)
class Job:
    """What to train, where, and within which budget."""

    corpus_dir: Path
    store_dir: Path
    config: TrainConfig
    host_memory_bytes: int
    kernel: str = "cpu"


class StoppedError(SurfError):
    """Training was asked to stop, and did so after a commit."""

    code = "stopped"


def identity(corpus: Corpus, config: TrainConfig) -> str:
    """What a training is: the digest of its corpus and of the settings that say what is learned."""
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in RESULT_NEUTRAL}
    return digest_json({"corpus": corpus.manifest, "config": settings})


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
        self.identity = identity(corpus, job.config)
        self.num_positions = self.config.epochs * corpus.num_partitions
        self.generation = self._committed()
        manifest = self.generation.manifest if self.generation else {}
        self.position: int = manifest.get("position", 0)
        self.curve = Curve(**manifest.get("curve", {}))
        self.seconds: float = manifest.get("train_seconds", 0.0)
        self.tokens_done: int = manifest.get("tokens_done", 0)
        self.num_commits: int = manifest.get("num_commits", 0)
        self.bytes_written: int = manifest.get("bytes_written", 0)

    @property
    def is_done(self) -> bool:
        return self.position == self.num_positions

    def prepare(self) -> None:
        """Pick the kernel, make the plan, load or begin the item table. Says what was chosen and why."""
        self.kernel: Kernel = pick_kernel(self.job.kernel, self.config.threads)
        self.plan = make_plan(self.job, self.corpus)
        for line in (f"kernel={self.kernel.name}: {self.kernel.reason}", *self.plan.reasons):
            self.on_event("log", {"message": line})
        if self.generation:
            self.on_event(
                "log", {"message": f"resuming at {self.position:,} of {self.num_positions:,} micro-partitions"}
            )
        counts = self.corpus.count_training_tokens()
        self.sampling: Sampling = make_sampling(counts, self.config.ns_exponent, self.config.sample)
        shape = (self.corpus.num_items, self.config.vector_size)
        self.items = self.generation.read_items() if self.generation else np.zeros(shape, dtype=np.float32)
        users = self.generation.manifest["users"] if self.generation else {}
        self.writer = Writer(self.job.store_dir, next_generation(self.job.store_dir), users)
        self.slots = Slots(self.corpus, self.writer, self.config.vector_size, self.config.seed)
        warm_up(self.kernel, self.config.vector_size)

    def run(self, stop: threading.Event) -> None:
        """Train every micro-partition that is left, in order; commit when it is time, when stopped, and at the end."""
        num_partitions = self.corpus.num_partitions
        last_commit = time.monotonic()
        while not self.is_done:
            epoch, index = divmod(self.position, num_partitions)
            order = partition_order(self.config.seed, epoch, num_partitions)
            if index == 0:
                self.curve.begin_epoch()
            self._swap(epoch, index, order)
            started = time.perf_counter()
            self._train_partition(epoch, index, order)
            self.seconds += time.perf_counter() - started
            self.position += 1
            self._report(epoch, index)
            if self.is_done or stop.is_set() or time.monotonic() - last_commit >= self.config.commit_seconds:
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
            "curve": self.curve.points,
            "bytes_written": self.bytes_written,
            "num_commits": self.num_commits,
            "stall": manifest["stall"],
        }

    def _committed(self) -> Generation | None:
        if not has_generation(self.job.store_dir):
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
            tokens=histories.tokens, starts=histories.starts, ends=histories.ends, hashes=histories.hashes,
            order=users, alphas=alphas, sampling=self.sampling, epoch_key=epoch_key(self.config.seed, epoch),
            negative=self.config.negative, threads=self.config.threads,
        )  # fmt: skip
        self.kernel.train_users(resident.vectors, self.items, work)
        resident.is_dirty = True
        self.tokens_done += int((histories.ends - histories.starts).sum())
        self._measure(resident, epoch, partition)

    def _measure(self, resident: Resident, epoch: int, partition: int) -> None:
        """Add the micro-partition to the curve. Raises TrainingError when its vectors or losses are not finite."""
        config = self.config
        is_finite = bool(np.isfinite(resident.vectors).all())
        if is_finite:
            self.curve.measure(
                config.seed, config.negative, self.sampling, resident.vectors, self.items, resident.histories
            )
        if not (is_finite and np.isfinite(self.curve.point_sums).all()):
            raise TrainingError(
                f"vectors are no longer finite in epoch {epoch + 1}, micro-partition {partition} (learning rate "
                f"{self.alpha:.4g}); nothing of it was written: lower train.alpha (now {config.alpha:g})"
            )

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

    def _commit(self) -> None:
        self.slots.write_all()
        self.num_commits += 1
        before = self.writer.bytes_written
        self.generation = self.writer.commit(
            self.items,
            {
                "identity": self.identity,
                "window_id": self.corpus.manifest["window_id"],
                "config": dataclasses.asdict(self.config),
                "partitions": self.corpus.num_partitions,
                "num_items": self.corpus.num_items,
                "vector_size": self.config.vector_size,
                "stage": "trained" if self.is_done else "training",
                "position": self.position,
                "curve": self.curve.to_json(),
                "train_seconds": self.seconds,
                "tokens_done": self.tokens_done,
                "num_commits": self.num_commits,
                "bytes_written": self.bytes_written + before + self.items.nbytes,
                "stall": self.slots.stall_seconds / max(self.seconds, 1e-9),
                "kernel": self.kernel.name,
                "kernel_reason": self.kernel.reason,
                "plan": self.plan.to_json(),
            },
        )
        self.bytes_written = self.generation.manifest["bytes_written"]
        self.writer.bytes_written = 0


def make_plan(job: Job, corpus: Corpus) -> Plan:
    """The plan for a job on this machine as it is now."""
    job.store_dir.mkdir(parents=True, exist_ok=True)
    stat = os.statvfs(job.store_dir)
    return plan_training(
        corpus.users.tolist(), corpus.num_items, job.config.vector_size, job.host_memory_bytes,
        private_bytes(), stat.f_bavail * stat.f_frsize,
    )  # fmt: skip


def warm_up(kernel: Kernel, vector_size: int) -> None:
    """Let the kernel compile on one user without tokens, so that the clock measures training alone."""
    row = np.zeros((1, vector_size), dtype=np.float32)
    zero = np.zeros(1, dtype=np.int64)
    work = Pass(
        tokens=np.zeros(1, dtype=np.int32), starts=zero, ends=zero, hashes=zero.astype(np.uint64), order=zero,
        alphas=np.zeros(1, dtype=np.float32), sampling=make_sampling(zero + 1, 1.0, 0.0), epoch_key=0, negative=1, threads=1,
    )  # fmt: skip
    kernel.train_users(row, row.copy(), work)


def private_bytes() -> int:
    """Anonymous and shared memory that this process holds now: what a budget is measured by."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines() if os.path.exists("/proc") else []
    fields = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(value.split()[0]) * 1024 for value in fields.values())


def next_generation(store_dir: Path) -> int:
    """The number of the generation that the next commit makes: higher than any before, pinned ones included."""
    paths = [store_dir / "MANIFEST.json", *(store_dir / "pinned").glob("*.json")]
    return 1 + max((read_json(path)["generation"] for path in paths if path.exists()), default=0)
