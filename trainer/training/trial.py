"""Tries the GPU kernel on one made-up user in a process of its own.

    python -m surf2vec.trainer.training.trial SETTINGS    settings as JSON; prints why the kernel cannot run here, if so

So the trial leaves no context on the card, and a driver that aborts ends nothing else.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ResourceError, SurfError
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.training.preparation import try_kernel

TRIAL_SECONDS = 300
"""The time limit of a trial. Triton compiles two programs and its driver in less than a minute."""


@cache
def try_apart(config: TrainConfig) -> None:
    """Try the kernel in a new process, once for the same settings. Raises ResourceError when it fails."""
    command = [sys.executable, "-m", "surf2vec.trainer.training.trial", json.dumps(asdict(config))]
    modules = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, modules)), "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"a trial of the GPU kernel with one user did not end within {TRIAL_SECONDS} s: look with nvidia-smi for what "
            "else uses the card, or train on the CPU"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        crashed = f"a trial of the GPU kernel with one user ended with {done.returncode} ({last}): train on the CPU"
        raise ResourceError(done.stdout.strip() or crashed)


def main() -> int:
    config = TrainConfig(**json.loads(sys.argv[1]))
    try:
        try_kernel(pick_kernel("gpu", config), config)
    except SurfError as error:
        print(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
