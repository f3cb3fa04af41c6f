"""What is here: versions, compiler, driver, card, packages; and whether the kernel runs at all and agrees with the reference."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch

from surf2vec.trainer.config import TrainConfig
from tests.benchmarks.acceptance.report import Report, device_name, run_step

FOR_TRAINING = ("pyarrow", "numba")
FOR_TESTS = ("pytest", "hypothesis", "pyarrow")
DRIVER_FIELDS = "driver_version,name,memory.total,memory.used,clocks.sm,clocks.mem,pcie.link.gen.current,power.limit"


def look(report: Report) -> None:
    import triton

    report.add(
        "versions", True, python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda,
        triton=triton.__version__, numpy=np.__version__, cores=os.cpu_count(),
    )  # fmt: skip
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    has_headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    missing = "" if compiler and has_headers else "apt install gcc python3-dev"
    report.add("C compiler and Python's headers, for Triton's driver", not missing, missing, compiler=compiler)
    for purpose, names in (("training", FOR_TRAINING), ("the tests", FOR_TESTS)):
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        if absent:
            report.skip(f"packages for {purpose}", f"not installed: {', '.join(absent)}")
        else:
            report.add(f"packages for {purpose}", True, packages=", ".join(names))
    look_at_card(report)
    check_agreement(report)


def look_at_card(report: Report) -> None:
    if not torch.cuda.is_available():
        report.skip("card", "torch sees none")
        return
    card = torch.cuda.get_device_properties(0)
    report.add(
        "card", True, name=card.name, capability=f"{card.major}.{card.minor}", bytes=card.total_memory,
        processors=card.multi_processor_count, l2_bytes=getattr(card, "L2_cache_size", None),
    )  # fmt: skip
    command = ["nvidia-smi", f"--query-gpu={DRIVER_FIELDS}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
        report.add("driver", True, told=told)
    except (OSError, subprocess.SubprocessError) as error:
        report.skip("driver", f"nvidia-smi: {error}")


def check_agreement(report: Report) -> None:
    """Both programs, one user a call, beside the reference. A failure of Triton or the driver is told as the trainer would."""
    from surf2vec.trainer.errors import ResourceError
    from surf2vec.trainer.kernels.failures import explain_failures
    from tests.benchmarks.acceptance.pairs import measure_agreement

    for objective, optimizer in (("sampled_softmax", "adagrad"), ("negative_sampling", "sgd")):
        config = TrainConfig(
            parts="interest", vector_size=report.size(128, 16), negative=5, sample=0, tile_users=1,
            objective=objective, optimizer=optimizer,
        )  # fmt: skip
        name = f"agrees with the reference, {objective}, {optimizer}"
        try:
            with explain_failures():
                share, largest = measure_agreement(config, report.size(5, 1))
        except ResourceError as error:
            report.add(name, False, str(error))
            return
        report.add(name, share == 1, f"on {device_name()}", within_tolerance=share, largest_difference=largest)


if __name__ == "__main__":
    sys.exit(run_step(look))
