"""How far a training is and what it cost: what its manifests carry from one process to the next, and what is told of it."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from trainer.curve import Curve


@dataclass
class Record:
    """Sums over all processes that worked on a training.

    position: micro-partitions trained over all epochs and item blocks. stall_seconds: what training waited for reads and
    writes, and a GPU for anything to train, as a part of train_seconds; commit_stall_seconds: for commits, beside them.
    num_processes: one, and another for each time it was resumed; peak_bytes: the most private memory of one. best: epoch,
    held-out loss and generation of the best epoch so far, with early stopping.
    """

    position: int = 0
    train_seconds: float = 0.0
    stall_seconds: float = 0.0
    commit_stall_seconds: float = 0.0
    tokens_done: float = 0.0
    num_processes: int = 1
    num_commits: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    peak_bytes: int = 0
    best: dict[str, Any] | None = None
    stopped_after_epoch: int | None = None
    curve: Curve = field(default_factory=Curve)

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it; a copy, which does not change when training goes on."""
        return dataclasses.asdict(self)

    def add_point(self, positions_an_epoch: int, alpha: float) -> dict[str, Any]:
        """Close a point of the curve, at the learning rate alpha; answers it."""
        return self.curve.add_point(
            epoch=round(self.position / positions_an_epoch, 4),
            seconds=round(self.train_seconds, 3),
            tokens=round(self.tokens_done),
            tokens_per_second=self.tokens_done / max(self.train_seconds, 1e-9),
            alpha=alpha,
        )

    def story(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The story's "train" (without seconds), with what else the last manifest says."""
        seconds = max(self.train_seconds, 1e-9)
        told = (
            "best",
            "stopped_after_epoch",
            "peak_bytes",
            "train_seconds",
            "num_processes",
            "num_commits",
            "bytes_read",
            "bytes_written",
        )
        return {
            **{name: manifest[name] for name in ("generation", "kernel", "kernel_reason", "plan")},
            **{name: getattr(self, name) for name in told},
            "tokens": round(self.tokens_done),
            "tokens_per_second": self.tokens_done / seconds if self.train_seconds else None,
            **self.curve.epoch_losses(),
            "curve": self.curve.points,
            "stall": self.stall_seconds / seconds,
            "commit_stall": self.commit_stall_seconds / seconds,
        }


def read_record(manifest: dict[str, Any]) -> Record:
    """The record in a manifest, for a process that reads it to go on or to answer; an empty one where there is no manifest."""
    names = [field.name for field in dataclasses.fields(Record)]
    values = {name: manifest[name] for name in names if name in manifest}
    if manifest.get("stage") == "training":
        values["num_processes"] = manifest.get("num_processes", 1) + 1
    return Record(**values | {"curve": Curve(**manifest.get("curve", {}))})
