"""Trainings that are divided as a test says, whatever fits, and that stop where it says."""

import dataclasses
import threading
from collections.abc import Callable, Container
from typing import Any

from surf2vec.trainer.plan.alone import plan_training
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import StoppedError, train

PLAN = "surf2vec.trainer.training.preparation.plan_training"


def divided(chunk_partitions: int, num_blocks: int = 1, has_trail: bool = False) -> Callable[..., Any]:
    """A planner, for PLAN, that makes chunks of this many micro-partitions, and item blocks, whatever fits."""

    def plan(*arguments: Any) -> Any:
        num_chunks = -(-len(arguments[0].users) // chunk_partitions)
        return dataclasses.replace(
            plan_training(*arguments[:4]), chunk_partitions=chunk_partitions, num_chunks=num_chunks,
            num_blocks=num_blocks, place_bytes=(10**6, 10**5) if num_chunks > 1 else None, trail_on_device=has_trail,
        )  # fmt: skip

    return plan


def train_until(job: Job, positions: Container[int]) -> dict[str, Any] | None:
    """Train, and stop after the next micro-partition whose number is in `positions`; the record if it ended before."""
    stop = threading.Event()

    def stop_there(name: str, values: dict[str, Any]) -> None:
        if name == "progress" and values["done"] in positions:
            stop.set()

    try:
        return train(job, stop_there, stop=stop)
    except StoppedError as stopped:
        assert "run the same command to resume" in str(stopped)
        return None


def every(num: int) -> range:
    """The positions after every `num` micro-partitions."""
    return range(num, 10**6, num)
