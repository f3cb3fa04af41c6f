"""Compares the planned and the measured figures of a training, for the report, MLflow and Prefect.

Both cover the complete training, including the waiting for commits. A value that is missing in the record of an earlier
version is a dash or is left out. With several workers, both are those of the first worker; `list_loads` lists all workers.
"""

from typing import Any

from surf2vec.tasks.root.records import TrainStep
from surf2vec.tasks.root.wording import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_percent,
)


def list_measured(train: TrainStep) -> list[dict[str, str]]:
    """Returns the rows of the table: `what`, `planned`, `measured`, and `note`, a short explanation."""
    plan, seconds, train = train.plan, spent_seconds(train), select_first_worker(train)
    if seconds is None:
        return []
    is_sharded = (plan.get("sharing") or {}).get("mode") == "sharded"  # item blocks move between workers
    is_resident = plan.get("num_chunks") == 1 and (plan.get("num_blocks", 1) == 1 or is_sharded)
    commits = f"{format_counted(train.num_commits, 'commit')} ({format_count(plan.get('num_commits'))} planned)"
    waited = format_percent(train.commit_stall)
    rows = [
        ("Time", format_duration(plan.get("seconds")), format_duration(seconds), "of training, and of waiting for commits"),
        (
            "Memory", format_bytes(plan.get("peak_bytes")), format_bytes(train.peak_bytes),
            f"of the process at most; budget {format_bytes(plan.get('budget_bytes'))}",
        ),
        (
            "Read", format_bytes(plan.get("read_bytes")), format_bytes(train.bytes_read),
            "nothing comes back: all vectors stay in memory" if is_resident else "vectors that come back",
        ),
        (
            "Written", format_bytes(plan.get("written_bytes")), format_bytes(train.bytes_written),
            f"{'' if is_resident else 'vectors that leave, and '}{commits}",
        ),
        (
            "Disk", format_rates(plan.get("read_bytes"), plan.get("written_bytes"), plan.get("seconds")),
            format_rates(train.bytes_read, train.bytes_written, seconds), "read / written on average",
        ),
        ("Waiting", UNKNOWN, format_percent(train.stall), f"of training's time, for the disk; for commits another {waited}"),
    ]  # fmt: skip
    for load in train.workers[:1]:
        sent_bytes = load["passed_bytes"] + load["summed_bytes"]
        rows.append(("Sent", format_bytes(plan.get("sent_bytes")), format_bytes(sent_bytes), "to other workers"))
    return [dict(zip(("what", "planned", "measured", "note"), row, strict=True)) for row in rows]


def list_caveats(train: TrainStep, epochs: int | None) -> list[str]:
    """Returns what a reader must know to compare both, such as a resumed training or an early stop. epochs: those planned."""
    caveats = []
    if len(train.workers) > 1:
        caveats.append(f"Both sides are of the first of {len(train.workers)} workers.")
    if (train.num_processes or 1) > 1:
        caveats.append(f"It was resumed: measured are the sums over {train.num_processes} processes.")
    if train.stopped_after_epoch:
        of = f" of {epochs}" if epochs else ""
        caveats.append(f"Planned were all epochs; early stopping ended it after epoch {train.stopped_after_epoch}{of}.")
    return caveats


def list_train_metrics(train: TrainStep) -> dict[str, float | None]:
    """Returns the same figures by their MLflow names. Like the plan, `train_seconds` includes the waiting for commits."""
    plan, seconds, train = train.plan, spent_seconds(train), select_first_worker(train)
    measured = {name: getattr(train, name) for name in ("peak_bytes", "bytes_read", "bytes_written", "num_commits")}
    planned = {"bytes_read": "read_bytes", "bytes_written": "written_bytes"}  # names in the plan
    figures = {"seconds": seconds, "stall": train.stall, "commit_stall": train.commit_stall} | measured
    for name in ("seconds", *measured):
        figures[f"predicted_{name}"] = plan.get(planned.get(name, name))
    for name in planned:
        figures[f"{name}_per_second"] = measured[name] / seconds if seconds and measured[name] is not None else None
    return {f"train_{name}": value for name, value in figures.items()} | {
        "train_budget_bytes": plan.get("budget_bytes")
    }


def spent_seconds(train: TrainStep) -> float | None:
    """Returns the seconds that training took, including the waiting for commits."""
    seconds = train.train_seconds
    return None if seconds is None else seconds * (1 + (train.commit_stall or 0))


def format_rates(read_bytes: int | None, written_bytes: int | None, seconds: float | None) -> str:
    """Returns the read and the write rate as text: `12.0 MB/s / 24.0 MB/s`."""
    if not seconds or read_bytes is None or written_bytes is None:
        return UNKNOWN
    return f"{format_bytes(read_bytes / seconds)}/s / {format_bytes(written_bytes / seconds)}/s"


def list_loads(train: TrainStep) -> list[dict[str, str]]:
    """Returns one row for each worker; none if a single process trained. Waiting is part of a worker's `time`: for `sums`,
    for `blocks`, for messages (`word`), for the `disk`. `late`: how many sums began before one arrived, mean and maximum.
    """
    num_tokens = sum(load["tokens"] for load in train.workers) or 1

    def format_late(load: dict[str, Any]) -> str:
        mean = load["staleness_sum"] / max(1, load["num_exchanges"])
        return f"{mean:.2f}, at most {load['staleness_most']:.0f}" if load["staleness_most"] else UNKNOWN

    return [
        {
            "worker": str(rank),
            "tokens": format_percent(load["tokens"] / num_tokens),
            "time": format_duration(load["train_seconds"]),
            "sums": format_duration(load["exchange_seconds"]),
            "blocks": format_duration(load["pass_seconds"]),
            "word": format_duration(load["meet_seconds"]),
            "disk": format_duration(load["stall_seconds"]),
            "sent": format_bytes(load["passed_bytes"] + load["summed_bytes"]),
            "memory": format_bytes(load["peak_bytes"]),
            "late": format_late(load),
        }
        for rank, load in enumerate(train.workers)
    ]


def describe_sharing(train: TrainStep) -> str:
    """Returns how the workers shared the item table, and why; empty if a single process trained."""
    mode = (train.plan.get("sharing") or {}).get("mode", "alone")
    reasons = [reason for reason in train.plan.get("reasons") or () if reason.startswith(f"{mode}: ")]
    return "" if mode == "alone" else f"{format_count(len(train.workers))} workers, {'; '.join(reasons) or mode}"


def select_first_worker(train: TrainStep) -> TrainStep:
    """Returns the training with the figures of its first worker, as the record's plan is that worker's."""
    names = ("bytes_read", "bytes_written", "peak_bytes")
    return train.model_copy(update={name: train.workers[0][name] for name in names}) if train.workers else train
