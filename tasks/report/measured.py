"""What was planned of a training beside what was measured: for the report, for MLflow and for Prefect.

Both sides are of the whole training, the waiting for commits included. A value that a story of an earlier version does not
have is a dash or is left out. Of several workers both are of the first; tasks/report/loads.py has what each did.
"""

from tasks.report.loads import of_first
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
            "Disk", tell_rates(plan.get("read_bytes"), plan.get("written_bytes"), plan.get("seconds")),
            tell_rates(train.bytes_read, train.bytes_written, seconds), "read / written on average",
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
    read_bytes, written_bytes = train.bytes_read, train.bytes_written
    return {
        "train_seconds": seconds,
        "train_predicted_seconds": plan.get("seconds"),
        "train_stall": train.stall,
        "train_commit_stall": train.commit_stall,
        "train_peak_bytes": train.peak_bytes,
        "train_predicted_peak_bytes": plan.get("peak_bytes"),
        "train_budget_bytes": plan.get("budget_bytes"),
        "train_bytes_read": read_bytes,
        "train_predicted_bytes_read": plan.get("read_bytes"),
        "train_bytes_written": written_bytes,
        "train_predicted_bytes_written": plan.get("written_bytes"),
        "train_bytes_read_per_second": None if not seconds or read_bytes is None else read_bytes / seconds,
        "train_bytes_written_per_second": None if not seconds or written_bytes is None else written_bytes / seconds,
        "train_num_commits": train.num_commits,
        "train_predicted_num_commits": plan.get("num_commits"),
    }


def spent_seconds(train: TrainStep) -> float | None:
    """Seconds that training took, with its waiting for commits."""
    seconds = train.train_seconds
    return None if seconds is None else seconds * (1 + (train.commit_stall or 0))


def tell_rates(read_bytes: int | None, written_bytes: int | None, seconds: float | None) -> str:
    """`12.0 MB/s / 24.0 MB/s`: how fast so much was read and written."""
    if not seconds or read_bytes is None or written_bytes is None:
        return UNKNOWN
    return f"{amount(read_bytes / seconds)}/s / {amount(written_bytes / seconds)}/s"
