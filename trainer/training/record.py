"""The progress and cost of a training: manifests pass it from one process to the next, and the record has it."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from surf2vec.trainer.training.curve import NUM_SUMS, Curve, losses

STEP_FIELDS = (
    "best", "stopped_after_epoch", "peak_bytes", "train_seconds", "num_processes", "num_commits", "bytes_read", "bytes_written",
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """The work of one of several workers so far. train_seconds: the total, with waiting for sums (exchange), blocks (pass) and
    messages (meet) of the others, and for the disk (stall). passed_bytes, summed_bytes: sent to others for blocks and for sums.
    staleness: how many exchanges began before the sum of one arrived.
    """

    tokens: float = 0.0
    train_seconds: float = 0.0
    exchange_seconds: float = 0.0
    pass_seconds: float = 0.0
    meet_seconds: float = 0.0
    stall_seconds: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    passed_bytes: float = 0.0
    summed_bytes: float = 0.0
    num_exchanges: float = 0.0
    peak_bytes: float = 0.0
    staleness_most: float = 0.0
    staleness_sum: float = 0.0


@dataclass
class Record:
    """Sums over all successive processes of a training.

    position: micro-partitions trained over all epochs and item blocks; with several workers, places. stall_seconds: waiting for
    reads and writes, and idle time of a GPU, a part of train_seconds; commit_stall_seconds: waiting for commits, not a part of
    it. peak_bytes: the most private memory of a process. best: epoch, held-out loss and generation of the best epoch, with
    early stopping. loads: of several workers, by rank; seconds, stall and bytes are then those of this worker.
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
    loads: list[Load] = field(default_factory=list)
    curve: Curve = field(default_factory=Curve)

    def to_json(self) -> dict[str, Any]:
        """Return a copy for a manifest."""
        return dataclasses.asdict(self)

    def add_point(self, positions_per_epoch: int, alpha: float) -> dict[str, Any]:
        """Complete a point of the curve, at the learning rate alpha. Returns it."""
        curve, rate = self.curve, self.tokens_done / max(self.train_seconds, 1e-9)
        point = {
            "epoch": round(self.position / positions_per_epoch, 4),
            "seconds": round(self.train_seconds, 3),
            "tokens": round(self.tokens_done),
            "tokens_per_second": rate,
            "alpha": alpha,
            **losses(curve.point_sums),
        }
        curve.points.append(point)
        curve.point_sums = [0.0] * NUM_SUMS
        return point

    def record(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the record of step "train" (without seconds); manifest: of the last generation."""
        seconds = max(self.train_seconds, 1e-9)
        workers = [dataclasses.asdict(load) for load in self.loads]
        return {
            **{name: manifest[name] for name in ("generation", "kernel", "kernel_reason", "plan")},
            **{name: getattr(self, name) for name in STEP_FIELDS},
            "tokens": round(self.tokens_done),
            "tokens_per_second": self.tokens_done / seconds if self.train_seconds else None,
            **self.curve.epoch_losses(),
            "curve": self.curve.points,
            "stall": self.stall_seconds / seconds,
            "commit_stall": self.commit_stall_seconds / seconds,
            **add_loads(self.loads),
            **({"workers": workers} if workers else {}),
        }

    def judge_epoch(self, epoch: int, patience: int, is_last: bool, generation: int) -> tuple[bool, bool]:
        """Compare an epoch, from 0, by its held-out loss, and record the best. generation: its number when committed.

        Returns whether it is the best so far, and whether the training ends with an earlier epoch as the best.
        """
        heldout_loss = self.curve.epoch_losses()["heldout_loss"]
        if heldout_loss is not None and (self.best is None or heldout_loss < self.best["heldout_loss"]):
            self.best = {"epoch": epoch + 1, "heldout_loss": heldout_loss, "generation": generation}
            return True, False
        return False, self.best is not None and (is_last or epoch + 1 - self.best["epoch"] >= patience)


def restart_epoch(manifest: dict[str, Any], epoch: int) -> dict[str, Any]:
    """Return a manifest for another number of workers, who restart the epoch, from 0; it keeps the sums of earlier epochs."""
    loads = [Load(**load) for load in manifest.get("loads", [])]
    points = [point for point in manifest.get("curve", {}).get("points", []) if point["epoch"] <= epoch]
    return manifest | add_loads(loads) | {"loads": [], "curve": dataclasses.asdict(Curve(points))}


def add_loads(loads: list[Load]) -> dict[str, int]:
    """Return the bytes of all workers, and the most memory of one; empty for a single worker."""
    if not loads:
        return {}
    return {
        "bytes_read": round(sum(load.bytes_read for load in loads)),
        "bytes_written": round(sum(load.bytes_written for load in loads)),
        "peak_bytes": round(max(load.peak_bytes for load in loads)),
    }


def read_record(manifest: dict[str, Any], rank: int = 0) -> Record:
    """Return the record in a manifest, which may be empty; rank: of this worker, whose own sums continue."""
    names = [field.name for field in dataclasses.fields(Record)]
    values = {name: manifest[name] for name in names if name in manifest}
    if manifest.get("stage") == "training":
        values["num_processes"] = manifest.get("num_processes", 1) + 1
    loads = [Load(**load) for load in manifest.get("loads", [])]
    if rank:
        own = loads[rank] if rank < len(loads) else Load(train_seconds=manifest.get("train_seconds", 0.0))  # it is new
        values |= {"train_seconds": own.train_seconds, "stall_seconds": own.stall_seconds}
        values |= {name: int(getattr(own, name)) for name in ("bytes_read", "bytes_written", "peak_bytes")}
    return Record(**values | {"curve": Curve(**manifest.get("curve", {})), "loads": loads})
