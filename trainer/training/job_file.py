"""A job as a file, for workers that are processes of their own: where it is, its settings, and what it goes on from.

Budgets and the device are not in it: they may be another for each worker.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from trainer.config import config_from_dict
from trainer.errors import ConfigError
from trainer.system.files import read_json, replace_file
from trainer.training.job import Job, Schedule


def write_job(job: Job, path: Path) -> None:
    """Write the job to `path`, for its owner alone. Raises ConfigError for what only this process has."""
    if job.warm_start is not None:
        raise ConfigError(
            "warm_start, vectors in the memory of this process, cannot be given to workers: write them to a file and name it "
            "in train.items_from, or train with one worker"
        )
    told = {
        "corpus_dir": str(job.corpus_dir.resolve()),
        "store_dir": str(job.store_dir.resolve()),
        "config": dataclasses.asdict(job.config),
        "start": job.start,
        "schedule": dataclasses.asdict(job.schedule) if job.schedule else None,
    }
    with replace_file(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(told, indent=1), encoding="utf-8")


def read_job(path: Path, kernel: str, host_memory_bytes: int, device_memory_bytes: int | None) -> Job:
    """The job in `path`, for a worker with this kernel and these budgets. Raises DamageError, ConfigError."""
    told: dict[str, Any] = read_json(path)
    return Job(
        Path(told["corpus_dir"]), Path(told["store_dir"]), config_from_dict(told["config"]), host_memory_bytes, kernel,
        device_memory_bytes, start=told["start"], schedule=Schedule(**told["schedule"]) if told["schedule"] else None,
    )  # fmt: skip
