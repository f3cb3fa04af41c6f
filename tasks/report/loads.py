"""What each of several workers had to do in a training, for the report and for Prefect; nothing where one trained alone."""

from tasks.root.story import TrainStep
from tasks.root.wording import UNKNOWN, amount, count, duration, share

COLUMNS = {
    "worker": "worker",
    "tokens": "tokens",
    "time": "time",
    "sums": "waited for sums",
    "blocks": "for blocks",
    "word": "for the others' word",
    "disk": "for the disk",
    "sent": "sent",
    "memory": "memory",
    "late": "sums late",
}
"""The titles of the columns."""


def list_loads(train: TrainStep) -> list[dict[str, str]]:
    """A row a worker, by the keys of COLUMNS. Seconds of waiting are a part of its time; `late`: how many sums had begun before
    the sum of one was there, in the mean and at most.
    """
    loads = train.workers
    num_tokens = sum(load["tokens"] for load in loads) or 1
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
            "late": _tell_late(load),
        }
        for rank, load in enumerate(loads)
    ]


def tell_sharing(train: TrainStep) -> str:
    """How the workers shared the item table, and what followed from it; empty where one trained alone."""
    plan = train.plan
    mode = (plan.get("sharing") or {}).get("mode", "alone")
    reasons = [reason for reason in plan.get("reasons") or () if reason.startswith(f"{mode}: ")]
    return "" if mode == "alone" else f"{count(len(train.workers))} workers, {'; '.join(reasons) or mode}"


def of_first(train: TrainStep) -> TrainStep:
    """The training as its first worker had it, whose plan the story has; as it is where one trained alone."""
    names = ("bytes_read", "bytes_written", "peak_bytes")
    return train.model_copy(update={name: train.workers[0][name] for name in names}) if train.workers else train


def _tell_late(load: dict[str, float]) -> str:
    if not load["staleness_most"]:
        return UNKNOWN
    return f"{load['staleness_sum'] / max(1, load['num_exchanges']):.2f}, at most {load['staleness_most']:.0f}"
