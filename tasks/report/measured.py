"""Compares the planned and the measured figures of a training, for the report, MLflow and Prefect.

Both cover the complete training, including the waiting for commits. A value that is missing in the record is a dash or
is left out. With several workers, both are those of the first worker; `list_loads` lists all workers.
"""

from collections.abc import Callable

from surf2vec.tasks.root.records import TrainStep
from surf2vec.tasks.root.wording import (
    UNKNOWN,
    Number,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_percent,
)


def list_measured(train: TrainStep) -> list[dict[str, str]]:
    """Return the rows of the table: `what`, `planned`, `measured`, and `note`, a short explanation."""
    figures, plan = list_train_metrics(train), train.plan
    if figures["train_seconds"] is None:
        return []
    is_sharded = (plan.get("sharing") or {}).get("mode") == "sharded"  # item blocks move between workers
    is_resident = plan.get("num_chunks") == 1 and (plan.get("num_blocks", 1) == 1 or is_sharded)
    commits = f"{format_counted(train.num_commits, 'commit')} ({format_count(plan.get('num_commits'))} planned)"
    rates = {name: f"{format_bytes(figures[f'train_bytes_{name}_per_second'])}/s" for name in ("read", "written")}
    read = (
        "nothing comes back: all vectors stay in memory" if is_resident else f"vectors that come back, {rates['read']}"
    )
    rows: list[tuple[str, str, Callable[[Number], str], str]] = [
        ("Time", "seconds", format_duration, "of training, and of waiting for commits"),
        ("Memory", "peak_bytes", format_bytes, f"of the process at most; budget {format_bytes(plan.get('budget_bytes'))}"),
        ("Read", "bytes_read", format_bytes, read),
        ("Written", "bytes_written", format_bytes,
            f"{'' if is_resident else 'vectors that leave, and '}{commits}, {rates['written']}"),
        ("Waiting", "stall", format_percent,
            f"of training's time, for the disk; for commits another {format_percent(train.commit_stall)}"),
    ]  # fmt: skip
    for load in train.workers[:1]:
        sent_bytes = load["passed_bytes"] + load["summed_bytes"]
        figures |= {"train_predicted_sent": plan.get("sent_bytes"), "train_sent": sent_bytes}
        rows.append(("Sent", "sent", format_bytes, "to other workers"))
    shown = (
        (what, show(figures.get(f"train_predicted_{name}")), show(figures[f"train_{name}"]), note)
        for what, name, show, note in rows
    )
    return [dict(zip(("what", "planned", "measured", "note"), row, strict=True)) for row in shown]


def list_caveats(train: TrainStep, epochs: int | None) -> list[str]:
    """Return what a reader must know to compare both, such as a resumed training or an early stop. epochs: those planned."""
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
    """Return the figures by their MLflow names. Like the plan, `train_seconds` includes the waiting for commits."""
    seconds, plan = train.train_seconds, train.plan
    seconds = None if seconds is None else seconds * (1 + (train.commit_stall or 0))
    # The record's plan is that of the first worker.
    load = train.workers[0] if train.workers else train.model_dump()
    measured = {name: load[name] for name in ("peak_bytes", "bytes_read", "bytes_written")}
    measured["num_commits"] = train.num_commits
    planned = {"bytes_read": "read_bytes", "bytes_written": "written_bytes"}  # names in the plan
    figures = {"seconds": seconds, "stall": train.stall, "commit_stall": train.commit_stall} | measured
    for name in ("seconds", *measured):
        figures[f"predicted_{name}"] = plan.get(planned.get(name, name))
    for name in planned:
        figures[f"{name}_per_second"] = measured[name] / seconds if seconds and measured[name] is not None else None
    figures["budget_bytes"] = plan.get("budget_bytes")
    return {f"train_{name}": value for name, value in figures.items()}


def list_loads(train: TrainStep) -> list[dict[str, str]]:
    """Return one row for each worker; none if a single process trained. Waiting is part of a worker's `time`: for `sums`,
    for `blocks`, for `messages`, for the `disk`. `late`: how many sums began before one arrived, mean and maximum.
    """
    num_tokens = sum(load["tokens"] for load in train.workers) or 1
    times = {"time": "train", "sums": "exchange", "blocks": "pass", "messages": "meet", "disk": "stall"}
    return [
        {
            "worker": str(rank),
            "tokens": format_percent(load["tokens"] / num_tokens),
            **{name: format_duration(load[f"{kind}_seconds"]) for name, kind in times.items()},
            "sent": format_bytes(load["passed_bytes"] + load["summed_bytes"]),
            "memory": format_bytes(load["peak_bytes"]),
            "late": f"{load['staleness_sum'] / max(1, load['num_exchanges']):.2f}, at most {load['staleness_most']:.0f}"
            if load["staleness_most"]
            else UNKNOWN,
        }
        for rank, load in enumerate(train.workers)
    ]


def describe_sharing(train: TrainStep) -> str:
    """Return how the workers shared the item table, and why; empty if a single process trained."""
    mode = (train.plan.get("sharing") or {}).get("mode", "alone")
    reasons = [reason for reason in train.plan.get("reasons") or () if reason.startswith(f"{mode}: ")]
    return "" if mode == "alone" else f"{format_count(len(train.workers))} workers, {'; '.join(reasons) or mode}"
