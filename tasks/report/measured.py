"""What was planned of a training beside what was measured: for the report, for MLflow and for Prefect.

Both sides are of the whole training, the waiting for commits included. A value that a story of an earlier version does not
have is a dash or is left out. Of several workers both are of the first; beside them is what each did.
"""

from typing import Any

from tasks.root.story import TrainStep
from tasks.root.wording import UNKNOWN, amount, count, duration, several, share


def list_measured(train: TrainStep) -> list[dict[str, str]]:
    """The rows of the table: `what`, `planned`, `measured`, and `note`, what it means in a few words."""
    plan, seconds, train = train.plan, spent_seconds(train), of_first(train)
    if seconds is None:
        return []
    is_sharded = (plan.get("sharing") or {}).get("mode") == "sharded"  # its blocks go from worker to worker
    is_resident = plan.get("num_chunks") == 1 and (plan.get("num_blocks", 1) == 1 or is_sharded)
    commits = f"{several(train.num_commits, 'commit')} ({count(plan.get('num_commits'))} planned)"
    waited = share(train.commit_stall)
    rows = [
        ("Time", duration(plan.get("seconds")), duration(seconds), "of training, and of waiting for commits"),
        (
            "Memory", amount(plan.get("peak_bytes")), amount(train.peak_bytes),
            f"of the process at most; budget {amount(plan.get('budget_bytes'))}",
        ),
        (
            "Read", amount(plan.get("read_bytes")), amount(train.bytes_read),
            "nothing comes back: all vectors stay in memory" if is_resident else "vectors that come back",
        ),
        (
            "Written", amount(plan.get("written_bytes")), amount(train.bytes_written),
            f"{'' if is_resident else 'vectors that leave, and '}{commits}",
        ),
        (
            "Disk", format_rates(plan.get("read_bytes"), plan.get("written_bytes"), plan.get("seconds")),
            format_rates(train.bytes_read, train.bytes_written, seconds), "read / written on average",
        ),
        ("Waiting", UNKNOWN, share(train.stall), f"of training's time, for the disk; for commits another {waited}"),
    ]  # fmt: skip
    for load in train.workers[:1]:
        sent_bytes = load["passed_bytes"] + load["summed_bytes"]
        rows.append(("Sent", amount(plan.get("sent_bytes")), amount(sent_bytes), "to other workers"))
    return [dict(zip(("what", "planned", "measured", "note"), row, strict=True)) for row in rows]


def list_caveats(train: TrainStep, epochs: int | None) -> list[str]:
    """What must be known to compare the two: that training was resumed, or ended early. epochs: as many were planned."""
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
    """The same figures by the names they have in MLflow; `train_seconds` has the waiting for commits in it, as the plan has."""
    plan, seconds, train = train.plan, spent_seconds(train), of_first(train)
    measured = {name: getattr(train, name) for name in ("peak_bytes", "bytes_read", "bytes_written", "num_commits")}
    planned = {"bytes_read": "read_bytes", "bytes_written": "written_bytes"}  # as the plan calls them
    figures = {"seconds": seconds, "stall": train.stall, "commit_stall": train.commit_stall} | measured
    for name in ("seconds", *measured):
        figures[f"predicted_{name}"] = plan.get(planned.get(name, name))
    for name in planned:
        figures[f"{name}_per_second"] = measured[name] / seconds if seconds and measured[name] is not None else None
    return {f"train_{name}": value for name, value in figures.items()} | {
        "train_budget_bytes": plan.get("budget_bytes")
    }


def spent_seconds(train: TrainStep) -> float | None:
    """Seconds that training took, with its waiting for commits."""
    seconds = train.train_seconds
    return None if seconds is None else seconds * (1 + (train.commit_stall or 0))


def format_rates(read_bytes: int | None, written_bytes: int | None, seconds: float | None) -> str:
    """`12.0 MB/s / 24.0 MB/s`: how fast so much was read and written."""
    if not seconds or read_bytes is None or written_bytes is None:
        return UNKNOWN
    return f"{amount(read_bytes / seconds)}/s / {amount(written_bytes / seconds)}/s"


def list_loads(train: TrainStep) -> list[dict[str, str]]:
    """A row a worker; none where one trained alone. Seconds of waiting are a part of its time: for `sums`, for `blocks`, for the
    others' `word`, for the `disk`. `late`: how many sums had begun before the sum of one was there, in the mean and at most.
    """
    num_tokens = sum(load["tokens"] for load in train.workers) or 1

    def format_late(load: dict[str, Any]) -> str:
        mean = load["staleness_sum"] / max(1, load["num_exchanges"])
        return f"{mean:.2f}, at most {load['staleness_most']:.0f}" if load["staleness_most"] else UNKNOWN

    return [
        {
            "worker": str(rank),
            "tokens": share(load["tokens"] / num_tokens),
            "time": duration(load["train_seconds"]),
            "sums": duration(load["exchange_seconds"]),
            "blocks": duration(load["pass_seconds"]),
            "word": duration(load["meet_seconds"]),
            "disk": duration(load["stall_seconds"]),
            "sent": amount(load["passed_bytes"] + load["summed_bytes"]),
            "memory": amount(load["peak_bytes"]),
            "late": format_late(load),
        }
        for rank, load in enumerate(train.workers)
    ]


def describe_sharing(train: TrainStep) -> str:
    """How the workers shared the item table, and what followed from it; empty where one trained alone."""
    mode = (train.plan.get("sharing") or {}).get("mode", "alone")
    reasons = [reason for reason in train.plan.get("reasons") or () if reason.startswith(f"{mode}: ")]
    return "" if mode == "alone" else f"{count(len(train.workers))} workers, {'; '.join(reasons) or mode}"


def of_first(train: TrainStep) -> TrainStep:
    """The training as its first worker had it, whose plan the story has; as it is where one trained alone."""
    names = ("bytes_read", "bytes_written", "peak_bytes")
    return train.model_copy(update={name: train.workers[0][name] for name in names}) if train.workers else train
