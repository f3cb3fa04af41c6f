"""Trainings of several workers as an operator starts them: torchrun, each worker a process; and the killing of one of them."""

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from surf2vec.trainer.store.generation import has_generation
from surf2vec.trainer.store.manifests import STORE_MANIFEST
from surf2vec.trainer.system.files import read_json
from tests.benchmarks.own_loopback import counted

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
MAX_RESTARTS = 5


@dataclass(frozen=True)
class Team:
    """num_workers: processes under torchrun, 0: `python -m surf2vec.trainer` without it; settings: of the training."""

    num_workers: int
    settings: Mapping[str, Any]
    host_memory: str = "2GB"

    def command(self, corpus_dir: Path, store_dir: Path) -> list[str]:
        """What starts it; its settings are left beside the store."""
        config = store_dir.with_name(f"{store_dir.name}.json")
        config.write_text(json.dumps(dict(self.settings)))
        restarts = ["--max-restarts", str(MAX_RESTARTS)]
        start = (
            [*TORCHRUN, "--nproc-per-node", str(self.num_workers), *restarts] if self.num_workers else [sys.executable]
        )
        places = ["--corpus", str(corpus_dir), "--store", str(store_dir), "--config", str(config)]
        return [*start, "-m", "surf2vec.trainer", *places, "--host-memory", self.host_memory, "--resume"]


def run_team(corpus_dir: Path, store_dir: Path, team: Team) -> dict[str, Any]:
    """What a training into an empty store tells of itself, and under "wire" what went over the loopback interface."""
    shutil.rmtree(store_dir, ignore_errors=True)
    command = counted(team.command(corpus_dir, store_dir), _counts(store_dir))
    return _tell(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), store_dir)


def run_killed(corpus_dir: Path, store_dir: Path, team: Team, num_kills: int, seed: int) -> dict[str, Any]:
    """The same, where a random worker gets SIGKILL at a random moment after a commit, num_kills times; also says "kills"."""
    shutil.rmtree(store_dir, ignore_errors=True)
    command = counted(team.command(corpus_dir, store_dir), _counts(store_dir))
    killed: list[int] = []
    draws = random.Random(seed)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        seen = 0
        while len(killed) < num_kills and process.poll() is None:
            workers = find_workers(process.pid)
            if len(workers) == team.num_workers and _generation(store_dir) > seen:
                time.sleep(draws.uniform(0, 1))
                with contextlib.suppress(psutil.NoSuchProcess):
                    draws.choice(workers).kill()
                    _wait_until_gone(workers)
                    seen = _generation(store_dir)
                    killed.append(seen)
            time.sleep(0.05)
        told = _tell(process, store_dir)
    return told | {"kills": killed}


def find_workers(pid: int) -> list[psutil.Process]:
    """The trainers among the descendants of a process, in the order of their ranks."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            parts = child.cmdline()
            if "surf2vec.trainer" in parts and "torch.distributed.run" not in parts:
                found.append((int(child.environ()["RANK"]), child))
    return [child for _, child in sorted(found, key=lambda one: one[0])]


def _generation(store_dir: Path) -> int:
    """Of the last commit; 0 before the first."""
    return int(read_json(store_dir / STORE_MANIFEST)["generation"]) if has_generation(store_dir) else 0


def _wait_until_gone(workers: Sequence[psutil.Process]) -> None:
    """torchrun ends the others and starts all again; until then those that are left are no new ones."""
    psutil.wait_procs(workers, timeout=60)


def _counts(store_dir: Path) -> Path:
    return store_dir.with_name(f"{store_dir.name}.wire.json")


def _tell(process: subprocess.Popen[str], store_dir: Path) -> dict[str, Any]:
    out, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"a training into {store_dir} ended with {process.returncode}: {errors[-2000:]}")
    return dict(json.loads(out)) | {"wire": read_json(_counts(store_dir))}
