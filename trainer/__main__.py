"""The trainer by itself: `python -m surf2vec.trainer --corpus DIR --store DIR --config FILE`, with torch and numba alone.

Prints one JSON object, the training's part of the run's record; progress goes to standard error. Several workers, on one or more
machines: `torchrun --nproc-per-node N -m surf2vec.trainer ...`; the first worker prints. A flow passes `--job FILE` in place of
corpus, store and settings, and reads the workers' events from `--events FILE`.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.errors import ConfigError, SurfError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.system.signals import end_with_parent, install_handlers
from surf2vec.trainer.system.units import parse_bytes
from surf2vec.trainer.training.job import Job, read_job
from surf2vec.trainer.training.loop import StoppedError, train
from surf2vec.trainer.workers.event_file import ERROR, RESULT, EventFile


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments; its help lists every setting with its default."""
    settings = "\n".join(
        f"  {field.name:<15} {field.metadata['description']} (default {field.default!r})"
        for field in dataclasses.fields(TrainConfig)
    )
    parser = argparse.ArgumentParser(
        prog="python -m surf2vec.trainer",
        description="Train user and item vectors from a corpus.",
        epilog=f"settings, in --config (JSON, or TOML with an optional table [train]):\n{settings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--corpus", type=Path, help="folder of a corpus: corpus/<window-id>")
    add("--store", type=Path, help="folder of the store")
    add("--config", type=Path, help="file with settings")
    add("--job", type=Path, help="file with corpus, store and settings, in place of these")
    add("--events", type=Path, help="file to add progress, result and errors to, as lines of JSON")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: the Triton kernel (default cpu)")
    add("--device-memory", help="budget on the GPU, e.g. 12GB; of several workers one for each, e.g. 12GB,24GB")
    add("--host-memory", default="4GB", help="budget of the process, or of each worker's (default 4GB)")
    add("--resume", action="store_true", help="resume the unfinished training in the store")
    return parser


def read_config(path: Path | None) -> TrainConfig:
    """Return the settings in a JSON or TOML file. Raises ConfigError when it cannot be read or has an unknown setting."""
    if path is None:
        return TrainConfig()
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the settings {path}: {error}") from None
    return config_from_dict(values.get("train", values))


class ProgressLines:
    """Prints to standard error: log messages, and points of the curve at most once in two seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, name: str, values: dict[str, Any]) -> None:
        if name == "log":
            print(values["message"], file=sys.stderr)
        elif name == "train" and time.monotonic() - self.last > 2:
            self.last = time.monotonic()
            loss, heldout = ("-" if values[key] is None else f"{values[key]:.4f}" for key in ("loss", "heldout_loss"))
            rate = f"{values['tokens_per_second']:,.0f} tokens/s"
            print(f"epoch {values['epoch']:.2f}  loss {loss}  held out {heldout}  {rate}", file=sys.stderr)


def parse_budget(text: str, rank: int, num_workers: int) -> int:
    """Return a worker's budget in bytes: the only one, or by rank from a list with commas. Raises ConfigError."""
    budgets = text.split(",")
    if len(budgets) not in (1, num_workers):
        raise ConfigError(f"{text!r} gives {len(budgets)} budgets for {num_workers} workers: give one, or one for each")
    return parse_bytes(budgets[rank if len(budgets) > 1 else 0])


def make_job(arguments: argparse.Namespace, rank: int, num_workers: int) -> Job:
    """Return the job of this worker. Raises ConfigError when arguments are missing or contradict each other."""
    kernel = "gpu" if arguments.device == "cuda" else "cpu"
    if arguments.device_memory and kernel == "cpu":
        raise ConfigError("--device-memory is the budget on a GPU: give --device cuda with it, or leave it out")
    host_bytes = parse_budget(arguments.host_memory, rank, num_workers)
    device_bytes = parse_budget(arguments.device_memory, rank, num_workers) if arguments.device_memory else None
    places = arguments.corpus, arguments.store
    if arguments.job and not any((*places, arguments.config)):
        return read_job(arguments.job, kernel, host_bytes, device_bytes)
    if arguments.job or None in places:
        raise ConfigError("give --corpus and --store, and --config if need be, or --job alone, which has all three")
    return Job(*places, read_config(arguments.config), host_bytes, kernel, device_bytes)


def main() -> int:
    """Train; returns the exit code (see surf2vec.trainer.errors)."""
    install_handlers()
    arguments = make_parser().parse_args()
    rank, num_workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if num_workers > 1:
        end_with_parent()  # torchrun's agent: without it the other workers would not be restarted
    file = EventFile(arguments.events) if arguments.events else None
    on_event: OnEvent = ignore_event if rank else file or ProgressLines()
    try:
        result = train(make_job(arguments, rank, num_workers), on_event, resume=arguments.resume)
    except (SurfError, KeyboardInterrupt) as error:  # the training itself commits when it is interrupted
        stopped = StoppedError("stopped: run the same command with --resume to continue from the last commit")
        failure = error if isinstance(error, SurfError) else stopped
        print(f"error: {failure}", file=sys.stderr)
        if file:
            file(ERROR, {"rank": rank, "code": failure.code, "message": str(failure)})
        return failure.exit_code
    if rank == 0:
        print(json.dumps(result))
        if file:
            file(RESULT, result)
    return 0


def end(code: int) -> NoReturn:
    """End this process at once. Otherwise a compiler or a thread of torch.distributed that still runs sometimes aborts it
    ("terminate called without an active exception"), and torchrun restarts all workers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
