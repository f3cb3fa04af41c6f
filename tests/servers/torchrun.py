"""Trainings of several workers as torchrun starts them, and the killing of them."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from surf2vec.trainer.store.generation import read_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.training.job import Job

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120


def make_command(job: Job, options: list[str], host_memory: str) -> list[str]:
    """The trainer for this job under torchrun with these options, or without it; its settings are left beside the store."""
    settings = job.store_dir.with_name(f"{job.store_dir.name}.json")
    settings.write_text(json.dumps(dataclasses.asdict(job.config)))
    return [
        *(sys.executable, "-m", *(["torch.distributed.run", *options, "-m"] if options else []), "surf2vec.trainer"),
        *("--corpus", str(job.corpus_dir), "--store", str(job.store_dir), "--config", str(settings)),
        *("--host-memory", host_memory, "--resume"),
        *(("--device", "cuda", "--device-memory", str(job.device_memory_bytes)) if job.kernel == "gpu" else ()),
    ]


def start_workers(job: Job, num_workers: int, *options: str, host_memory: str = "4GB") -> subprocess.Popen[str]:
    """torchrun with so many workers for this job; options: of torchrun. Who starts it also ends it."""
    return _start(job, ["--standalone", "--nproc-per-node", str(num_workers), *options], host_memory)


def start_machine(job: Job, port: int) -> subprocess.Popen[str]:
    """One of two machines, with a worker each, of which one suffices; the first that is started is where they meet."""
    options = [
        *("--nnodes", "1:2", "--rdzv-id", "night", "--max-restarts", "3"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "last_call_timeout=4"),
    ]
    return _start(job, options, "4GB", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def _start(job: Job, options: list[str], host_memory: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        make_command(job, options, host_memory), cwd=ROOT, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run_workers(job: Job, num_workers: int, host_memory: str = "4GB") -> dict[str, Any]:
    """What a training of so many workers tells of itself, left alone."""
    with start_workers(job, num_workers, host_memory=host_memory) as process:
        told, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return dict(json.loads(told))


def read_position(store_dir: Path) -> int:
    """Where a training stands that may be committing: its files are not looked at, which may go the next moment."""
    path = store_dir / STORE_MANIFEST
    return int(read_manifest(path)["position"]) if path.exists() else 0


def run_and_kill(job: Job, num_workers: int, num_kills: int) -> dict[str, Any]:
    """The same, with a worker killed after a commit, so often; torchrun starts them again."""
    position = 0
    with start_workers(job, num_workers, "--max-restarts", str(num_kills + 1)) as process:
        for kill in range(num_kills):
            while read_position(job.store_dir) <= position:
                assert process.poll() is None, "the training ended before it could be killed"
                time.sleep(0.01)
            position = read_position(job.store_dir)
            workers = [
                child for child in psutil.Process(process.pid).children() if "surf2vec.trainer" in child.cmdline()
            ]
            workers[kill % len(workers)].send_signal(signal.SIGKILL)
        told, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return dict(json.loads(told.splitlines()[-1]))  # all that were alive at the end, and again when killed there
